#define GNEWT_ISA isa_avx512
#include "isa.inc"

namespace gnewt::engine {

const Engine* avx512_engine() {
    using namespace isa_avx512;
    static const Engine engine{"avx512", factor<double>, factor<float>, solve<double>, solve<float>};
    return &engine;
}

}  // namespace gnewt::engine
