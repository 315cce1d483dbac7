#define GNEWT_ISA isa_avx512
#define GNEWT_ISA_LINEARIZER avx512_linearizer
#include "linearize.inc"
