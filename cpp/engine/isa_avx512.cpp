#define GNEWT_ISA isa_avx512
#define GNEWT_ISA_NAME "avx512"
#define GNEWT_ISA_ENGINE avx512_engine
#include "isa.inc"
