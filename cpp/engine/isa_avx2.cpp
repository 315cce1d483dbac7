#define GNEWT_ISA isa_avx2
#define GNEWT_ISA_NAME "avx2"
#define GNEWT_ISA_ENGINE avx2_engine
#include "isa.inc"
