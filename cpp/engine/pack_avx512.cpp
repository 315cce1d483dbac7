#define GNEWT_ISA isa_avx512
#define GNEWT_ISA_PACKER avx512_packer
#include "pack.hpp"
