// Included in front of every C++ file of a wheel: makes libraries of a newer system run on those of
// glibc 2.28 and libstdc++ of GCC 8 as well.
//
// What has got a second version since is asked for in its first one, which every later system has.
#if defined(__x86_64__)
#define TRTLA_FIRST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define TRTLA_FIRST "GLIBC_2.17"
#endif

#define TRTLA_OLD(name, version) __asm__(".symver " name "," name "@" version)
TRTLA_OLD("exp", TRTLA_FIRST);
TRTLA_OLD("log", TRTLA_FIRST);
TRTLA_OLD("pthread_mutex_trylock", TRTLA_FIRST);
TRTLA_OLD("pthread_once", TRTLA_FIRST);
TRTLA_OLD("pthread_sigmask", TRTLA_FIRST);
TRTLA_OLD("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", "GLIBCXX_3.4.11");

// GCC 11 has told two errors apart that were one before.
#define __throw_bad_array_new_length __throw_bad_alloc
