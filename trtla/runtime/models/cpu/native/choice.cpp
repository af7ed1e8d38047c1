// The calls for what the target says after a row.
#include "choice.h"
#include "draw.h"
#include "exported.h"
#include "team.h"

EXPORTED int64_t trtla_most_probable(const float* logits, int64_t size) {
    return most_probable(logits, size);
}

EXPORTED int64_t trtla_draw(const float* logits, int64_t size, const Filters* filters, double noise,
                            int64_t threads) {
    return Draw(logits, size, *filters, noise).token(threads);
}

EXPORTED void trtla_masked(const float* logits, int64_t size, const uint32_t* mask, float* out) {
    masked(logits, size, mask, out);
}

EXPORTED const char* trtla_filters() {
#define TRTLA_NAME(name) #name " "
    return TRTLA_FILTERS(TRTLA_NAME);
#undef TRTLA_NAME
}

namespace {

struct TopRows : Job {
    const float* logits;
    int64_t size, num_rows, count;
    const int64_t* rows;
    int32_t* tokens;
    float* logs;

    int phases() const override { return 1; }
    int chunks(int) const override { return (int)num_rows; }
    void run(int, int at) override {
        top_of_row(logits + rows[at] * size, size, count, tokens + at * count, logs + at * count);
    }
};

}  // namespace

EXPORTED void trtla_top_rows(const float* logits, int64_t size, const int64_t* rows,
                             int64_t num_rows, int64_t count, int32_t* tokens, float* logs,
                             int64_t threads) {
    TopRows job;
    job.logits = logits, job.size = size, job.num_rows = num_rows, job.count = count;
    job.rows = rows, job.tokens = tokens, job.logs = logs;
    Team::shared().run(job, threads);
}
