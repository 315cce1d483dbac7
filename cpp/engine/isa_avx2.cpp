#define GNEWT_ISA isa_avx2
#include "isa.inc"

namespace gnewt::engine {

const Engine* avx2_engine() {
    using namespace isa_avx2;
    static const Engine engine{"avx2", factor<double>, factor<float>, solve<double>, solve<float>};
    return &engine;
}

}  // namespace gnewt::engine
