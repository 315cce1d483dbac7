#define GNEWT_ISA isa_baseline
#include "isa.inc"

namespace gnewt::engine {

const Engine* baseline_engine() {
    using namespace isa_baseline;
    static const Engine engine{"baseline", factor<double>, factor<float>, solve<double>, solve<float>};
    return &engine;
}

}  // namespace gnewt::engine
