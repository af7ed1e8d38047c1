// The call of a step: the Llama forward on CPUs, of all fed tokens of all sequences. Nothing is
// allocated once buffers have grown.
#include "exported.h"
#include "forward.h"

EXPORTED int64_t trtla_lanes() { return LANES; }
EXPORTED int64_t trtla_has_bfloat16_products() { return HAS_BFLOAT16_PRODUCTS && tiles_are_given(); }

namespace {

template <class C>
void forward(const Model& model, const Step& step) {
    static thread_local Buffers buffers;
    Forward<C> job(model, step, buffers);
    Team::shared().run(job, step.threads);
}

}  // namespace

EXPORTED void trtla_forward(const Model* model, const Step* step) {
    switch (model->cache_type) {
        case CACHE_FLOAT32: return forward<float>(*model, *step);
        case CACHE_BFLOAT16: return forward<BFloat16>(*model, *step);
        case CACHE_INT8: return forward<Int8>(*model, *step);
    }
}
