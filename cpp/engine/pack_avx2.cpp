#define GNEWT_ISA isa_avx2
#define GNEWT_ISA_PACKER avx2_packer
#include "pack.hpp"
