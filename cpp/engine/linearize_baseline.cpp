#define GNEWT_ISA isa_baseline
#define GNEWT_ISA_LINEARIZER baseline_linearizer
#include "linearize.inc"
