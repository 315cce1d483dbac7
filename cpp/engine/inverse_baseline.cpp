#define GNEWT_ISA isa_baseline
#define GNEWT_ISA_INVERTER baseline_inverter
#include "inverse.hpp"
