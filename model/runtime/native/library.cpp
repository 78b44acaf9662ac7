// The entry that ONNX Runtime calls, and what Python asks before it. Compiled for any CPU of the family.
#include "add_norm.h"
#include "cross_attention.h"
#include "feed_forward.h"
#include "linear_top_log_probs.h"
#include "quantized_linear.h"
#include "self_attention.h"
#include "top_log_probs.h"
#include "tree_attention.h"

namespace {

using namespace dragoman;

// Operators live as long as the process: sessions keep pointers to them.
template <class Kernel>
const OrtCustomOp* one() {
    static const Operator<Kernel> made;
    return &made;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// 1 if this CPU has every instruction that the kernels use, else 0.
EXPORTED int dragoman_supported() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

// The digest of the sources that this library was built from.
EXPORTED const char* dragoman_sources() { return DRAGOMAN_SOURCES; }

EXPORTED OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
    const OrtApi* api = base->get_api(kApiVersion);
    if (!api) return ort::create_status(base->get_api(1), ErrorCode::fail, "this ONNX Runtime is too old for dragoman.");
    return guarded(api, "dragoman", [&] {
        static OrtCustomOpDomain* const domain = [&] {
            OrtCustomOpDomain* made = nullptr;
            check(api, ort::create_domain(api, "dragoman", &made));
            for (const OrtCustomOp* op : {one<QuantizedLinear>(), one<FeedForward>(), one<TreeAttention>(), one<CrossAttention>(),
                                          one<SelfAttention>(), one<TopLogProbs>(), one<LinearTopLogProbs>(), one<AddNorm>()}) {
                check(api, ort::add_to_domain(api, made, op));
            }
            return made;
        }();
        check(api, ort::add_domain(api, options, domain));
    });
}
