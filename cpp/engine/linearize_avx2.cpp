#define GNEWT_ISA isa_avx2
#define GNEWT_ISA_LINEARIZER avx2_linearizer
#include "linearize.inc"
