#define GNEWT_ISA isa_baseline
#define GNEWT_ISA_PACKER baseline_packer
#include "pack.hpp"
