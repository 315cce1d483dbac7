#define GNEWT_ISA isa_avx512
#define GNEWT_ISA_INVERTER avx512_inverter
#include "inverse.hpp"
