// Names of the codes that a call returns, for tests that compare the codes of Python with those of call.hpp.
// Each function returns null for a number that has no name. A switch without one of its codes is a warning of the
// compiler (-Wswitch), so that no code can be forgotten here.
#include "call.hpp"

namespace gnewt::engine {
namespace {

const char* name_of(Status status) {
    switch (status) {
        case kOk: return "ok";
        case kSingular: return "singular";
        case kNonFinite: return "nonfinite";
        case kOutOfMemory: return "out of memory";
        case kBadPlan: return "bad plan";
    }
    return nullptr;
}

const char* name_of(Mode mode) {
    switch (mode) {
        case kNone: return "none";
        case kCausal: return "causal";
        case kGeneral: return "general";
    }
    return nullptr;
}

const char* name_of(InfoField field) {
    switch (field) {
        case kStatus: return "status";
        case kPositive: return "positive";
        case kNegative: return "negative";
        case kZero: return "zero";
        case kDelayed: return "delayed";
        case kKept: return "kept";
        case kMode: return "mode";
        case kFirstNull: return "first null";
        case kInfoSize: return nullptr;
    }
    return nullptr;
}

const char* name_of(RealField field) {
    switch (field) {
        case kLogDet: return "logdet";
        case kSmallestPivot: return "smallest pivot";
        case kShift: return "shift";
        case kRealSize: return nullptr;
    }
    return nullptr;
}

}  // namespace
}  // namespace gnewt::engine

using namespace gnewt::engine;

#define GNEWT_EXPORT extern "C" __attribute__((visibility("default")))
GNEWT_EXPORT const char* gnewt_engine_status_name(int number) { return name_of(Status(number)); }
GNEWT_EXPORT const char* gnewt_engine_mode_name(int number) { return name_of(Mode(number)); }
GNEWT_EXPORT const char* gnewt_engine_info_name(int number) {
    return 0 <= number && number < kInfoSize ? name_of(InfoField(number)) : nullptr;
}
GNEWT_EXPORT const char* gnewt_engine_real_name(int number) {
    return 0 <= number && number < kRealSize ? name_of(RealField(number)) : nullptr;
}
