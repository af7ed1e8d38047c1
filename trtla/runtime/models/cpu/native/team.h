// Threads that share the work of a step, phase by phase, and never depend on a thread that does not run.
//
// A phase is cut into chunks, which are claimed one by one: a thread that the system has put aside
// costs at most the chunk that it is in, and one that comes late finds the work done. Who waits spins
// for a short while and then sleeps, so that a core that others need is given to them.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
inline void relax() { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
inline void relax() { asm volatile("yield"); }
#else
inline void relax() {}
#endif

// The work of one step. Phases follow each other; the chunks of a phase may run at the same time.
class Job {
public:
    virtual int phases() const = 0;
    virtual int chunks(int phase) const = 0;  // from 1 to 65535
    virtual void run(int phase, int chunk) = 0;

protected:
    ~Job() = default;
};

class Team {
public:
    // The process's threads. They are never joined: nothing that they use is ever destroyed.
    static Team& shared() {
        static std::once_flag once;
        std::call_once(once, [] {
            current() = new Team;
            pthread_atfork(nullptr, nullptr, [] { current() = new Team; });  // a child has none
        });
        return *current();
    }

    // Runs a job on up to `threads` threads, the caller among them. While the team works for another
    // caller, this one works alone: the result is the same.
    void run(Job& job, int threads) {
        std::unique_lock<std::mutex> own(busy_, std::defer_lock);
        if (threads < 2 || !own.try_lock()) return alone(job);
        want(threads - 1);
        first_ = phase_of(state_.load());
        job_ = &job;
        const uint32_t end = first_ + job.phases();
        enter(first_, job.chunks(0));
        for (;;) {
            const uint64_t seen = state_.load(std::memory_order_acquire);
            if (phase_of(seen) == end) return;
            if (!work()) wait([&] { return state_.load() != seen; });
        }
    }

private:
    // The phase that is open: its serial number, how many chunks it has, how many are claimed.
    static uint64_t state(uint32_t phase, uint32_t chunks, uint32_t claimed) {
        return (uint64_t)phase << 32 | chunks << 16 | claimed;
    }
    static uint32_t phase_of(uint64_t state) { return state >> 32; }
    static uint32_t chunks_of(uint64_t state) { return state >> 16 & 0xFFFF; }
    static uint32_t claimed_of(uint64_t state) { return state & 0xFFFF; }
    static bool claimable(uint64_t state) { return claimed_of(state) < chunks_of(state); }

    static Team*& current() {
        static Team* team;
        return team;
    }

    static void alone(Job& job) {
        for (int phase = 0; phase < job.phases(); ++phase)
            for (int chunk = 0; chunk < job.chunks(phase); ++chunk) job.run(phase, chunk);
    }

    void enter(uint32_t phase, int chunks) {
        state_.store(state(phase, chunks, 0));
        if (sleepers_.load()) {
            std::lock_guard<std::mutex> lock(door_);
            bell_.notify_all();
        }
    }

    // Claims one chunk and runs it; false: there is none. Nothing of the job is read before the claim:
    // only from then on it cannot end.
    bool work() {
        uint64_t seen = state_.load(std::memory_order_acquire);
        do
            if (!claimable(seen)) return false;
        while (!state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel));
        const uint32_t index = phase_of(seen) - first_, chunks = chunks_of(seen);
        job_->run(index, claimed_of(seen));
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < chunks) return true;
        finished_.store(0, std::memory_order_relaxed);
        const bool ended = (int)index + 1 == job_->phases();
        enter(phase_of(seen) + 1, ended ? 0 : job_->chunks(index + 1));
        return true;
    }

    // Waits for what `enter` changes: a short while awake, then asleep.
    template <class Ready>
    void wait(Ready ready) {
        const auto end = std::chrono::steady_clock::now() + SPIN;
        do
            for (int i = 0; i < 32; ++i) {
                if (ready()) return;
                relax();
            }
        while (std::chrono::steady_clock::now() < end);
        std::unique_lock<std::mutex> lock(door_);
        sleepers_.fetch_add(1);
        bell_.wait(lock, ready);
        sleepers_.fetch_sub(1);
    }

    // So many helpers take part from now on; the others sleep until they are wanted.
    void want(int helpers) {
        if (wanted_.load() == helpers) return;
        {
            std::lock_guard<std::mutex> lock(door_);
            wanted_.store(helpers);
            lobby_.notify_all();
        }
        for (; hired_ < helpers; ++hired_) hire(hired_);
    }

    void hire(int number) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the caller's threads
        std::thread([this, number] { help(number); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void help(int number) {
        for (;;) {
            while (number < wanted_.load(std::memory_order_relaxed))
                if (!work()) wait([&] { return claimable(state_.load()) || number >= wanted_; });
            std::unique_lock<std::mutex> lock(door_);
            lobby_.wait(lock, [&] { return number < wanted_.load(); });
        }
    }

    static constexpr std::chrono::microseconds SPIN{200};

    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<uint32_t> finished_{0};
    alignas(64) std::atomic<int> sleepers_{0}, wanted_{0};
    Job* job_ = nullptr;
    uint32_t first_ = 0;
    int hired_ = 0;
    std::mutex busy_, door_;
    std::condition_variable bell_, lobby_;
};
