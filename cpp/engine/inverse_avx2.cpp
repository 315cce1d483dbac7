#define GNEWT_ISA isa_avx2
#define GNEWT_ISA_INVERTER avx2_inverter
#include "inverse.hpp"
