// Times the products of weights in blocks by fed tokens: from the cache, from memory, and the memory alone.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include <sys/mman.h>

#include "matmul.h"

using Clock = std::chrono::steady_clock;

constexpr int INPUTS = 2048, CACHED = 8, ROUNDS = 9;  // panels that stay in the second-level cache
constexpr int TOKENS[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 32};

static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Cycles of a core in a second: rotations that wait for each other take one each. (Additions of constants
// do not: some processors make several of them one.)
static double cycles_in_a_second() {
    double best = 0;
    for (int round = 0; round < 20; ++round) {
        const auto start = Clock::now();
        volatile int rounds = 200000;
        uint64_t turned = rounds;
        for (int i = rounds; i; --i)
            for (int turn = 0; turn < 8; ++turn) {
                turned = turned << 7 | turned >> 57;
                asm volatile("" : "+r"(turned));
            }
        best = std::max(best, 8 * 200000 / seconds_since(start));
    }
    return best;
}

// The time of work(thread) on all threads at once.
static double timed(int threads, const std::function<void(int)>& work) {
    std::atomic<int> ready{0};
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread)
        others.emplace_back([&, thread] {
            for (++ready; ready < threads;) {}
            work(thread);
        });
    for (++ready; ready < threads;) {}
    const auto start = Clock::now();
    work(0);
    for (std::thread& other : others) other.join();
    return seconds_since(start);
}

// Bytes in huge pages, as all weights are.
struct Panels {
    static constexpr size_t PAGE = 2 << 20;
    size_t size;
    std::unique_ptr<uint8_t[], decltype(&std::free)> bytes;

    explicit Panels(size_t size)
        : size(size), bytes((uint8_t*)std::aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE), std::free) {
        madvise(bytes.get(), size, MADV_HUGEPAGE);
    }
};

template <class B>
static Panels random_panels(int count) {
    Panels panels(B::panel_bytes(INPUTS) * count);
    uint32_t state = 1;
    for (size_t i = 0; i < panels.size; ++i)
        panels.bytes[i] = (state = state * 1664525 + 1013904223) >> 24;
    for (int block = 0; block < count * INPUTS / BLOCK; ++block) {
        const size_t panel = block / (INPUTS / BLOCK);
        const B place(&panels.bytes[panel * B::panel_bytes(INPUTS)], block % (INPUTS / BLOCK));
        for (int half = 0; half < B::HALVES / 2; ++half)
            std::memcpy((uint8_t*)place.halves + 2 * half, "\0\x20", 2);  // small and finite
        if (!B::HALVES) std::memset((uint8_t*)place.small, 120, WIDTH);
    }
    return panels;
}

static volatile float kept;

// The shortest time to multiply `times` times the panels [first(thread), first(thread) + count).
static double products(const Operand& x, const Matrix& matrix, int threads, int count, int apart, int times) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; ++round)
        best = std::min(best, timed(threads, [&](int thread) {
                            float sum = 0;
                            for (int i = 0; i < times; ++i)
                                matmul(x, matrix, thread * apart, thread * apart + count,
                                       [&](int, int, const float* found) { sum += found[0]; });
                            kept = sum;
                        }));
    return best / times;
}

// The shortest time to read all panels.
static double reading(const Panels& panels, int threads) {
    const size_t share = panels.size / threads;
    double best = 1e9;
    for (int round = 0; round < ROUNDS; ++round)
        best = std::min(best, timed(threads, [&](int thread) {
                            const uint8_t* from = panels.bytes.get() + thread * share;
                            Bits sum{};
                            for (size_t at = 0; at + sizeof sum <= share; at += sizeof sum) {
                                if (at % 64 == 0) __builtin_prefetch(from + at + AHEAD, 0, 2);
                                sum += load_as<Bits>(from + at);
                            }
                            kept = sum[0];
                        }));
    return best;
}

template <class B>
static void measure(const char* name, Type type, int threads, int megabytes, double hertz) {
    const int count = (int)(megabytes * 1000000LL / B::panel_bytes(INPUTS) + 1) / threads * threads;
    const Panels panels = random_panels<B>(count);
    const Matrix matrix{panels.bytes.get(), nullptr, count * WIDTH, INPUTS, type};
    const double memory = reading(panels, threads);
    double one = 0;
    for (int tokens : TOKENS) {
        Operand x;
        x.reset(type, tokens, INPUTS);
        std::vector<float> numbers(INPUTS);
        for (int i = 0; i < INPUTS; ++i) numbers[i] = (i * 37 % 201 - 100) / 77.0f;
        for (int token = 0; token < tokens; ++token) x.put(type, token, numbers.data());
        const double cached = products(x, matrix, threads, CACHED, count / threads, 20) / CACHED;
        const double together = products(x, matrix, threads, count / threads, count / threads, 1);
        if (tokens == 1) one = together;
        const double blocks = INPUTS / BLOCK * tokens * WIDTH / 16.0;
        std::printf("| %s | %d | %.1f | %.2f | %.2f | %.2f | %.2f |\n", name, tokens,
                    cached * hertz / blocks, 1e3 * memory, 1e3 * cached * count / threads,
                    1e3 * together, together / one);
    }
}

int main(int arguments, char** named) {
    const int threads = std::atoi(named[1]), megabytes = std::atoi(named[2]);
    const double hertz = cycles_in_a_second();
    tiles_are_given();
    std::printf("%d lanes, %d threads, %.2f GHz, %d MB of weights\n\n", LANES, threads, hertz / 1e9, megabytes);
    std::printf("| type | tokens | cycles | memory ms | arithmetic ms | together ms | of one token |\n");
    std::printf("|---|---:|---:|---:|---:|---:|---:|\n");
    for (int i = 3; i < arguments; ++i) {
#define TRTLA_TYPE(name, ...) \
    if (!std::strcmp(named[i], #name)) measure<name>(#name, TYPE_##name, threads, megabytes, hertz);
        TRTLA_BLOCK_TYPES(TRTLA_TYPE)
#undef TRTLA_TYPE
    }
}
