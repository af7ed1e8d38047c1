// Jobs on the shared team from several callers at once, each checked: every chunk runs once, and no
// phase begins before the one in front of it has ended. Built with a sanitizer by test_team.py.
#include "team.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

struct Sums final : Job {
    std::vector<std::vector<int>> ran;
    std::vector<int> carried;  // of each phase: what it found of the phase in front of it

    explicit Sums(std::mt19937& random) {
        for (int phase = 1 + random() % 12; phase > 0; --phase)
            ran.emplace_back(1 + random() % (random() % 8 ? 12 : 200));
        carried.resize(ran.size());
    }
    int phases() const override { return ran.size(); }
    int chunks(int phase) const override { return ran[phase].size(); }
    void run(int phase, int chunk) override {
        if (!chunk && phase)
            for (int times : ran[phase - 1]) carried[phase] += times;
        ran[phase][chunk] += 1;
        for (volatile int spin = 0; spin < chunk % 7 * 200;) spin = spin + 1;
    }
    bool right() const {
        for (int phase = 0; phase < phases(); ++phase) {
            if (phase && carried[phase] != chunks(phase - 1)) return false;
            for (int times : ran[phase])
                if (times != 1) return false;
        }
        return true;
    }
};

void call(int seed, int jobs) {
    std::mt19937 random(seed);
    for (int i = 0; i < jobs; ++i) {
        Sums sums(random);
        Team::shared().run(sums, 1 + random() % 4);
        if (!sums.right()) std::abort();
        if (random() % 50 == 0) usleep(random() % 600);  // so that helpers fall asleep
    }
}

}  // namespace

int main(int, char** arguments) {
    const int jobs = std::atoi(arguments[1]);
    call(1, jobs);
    std::vector<std::thread> callers;
    for (int seed = 2; seed < 5; ++seed) callers.emplace_back(call, seed, jobs);
    for (auto& caller : callers) caller.join();
    const pid_t child = fork();  // a child has none of the threads
    if (!child) {
        alarm(60);
        call(5, jobs / 4);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status) std::abort();
    std::puts("right");
}
