#define GNEWT_ISA isa_baseline
#define GNEWT_ISA_NAME "baseline"
#define GNEWT_ISA_ENGINE baseline_engine
#include "isa.inc"
