// Names of the codes that a call returns, for tests that compare the codes of Python with those of call.hpp.
// Each function returns null for a number that has no name.
#include "call.hpp"

namespace {

using namespace gnewt::engine;

struct Name {
    int number;
    const char* text;
};

constexpr Name kStatuses[] = {{kOk, "ok"},
                              {kSingular, "singular"},
                              {kNonFinite, "nonfinite"},
                              {kOutOfMemory, "out of memory"},
                              {kBadPlan, "bad plan"}};
constexpr Name kModes[] = {{kNone, "none"}, {kCausal, "causal"}, {kGeneral, "general"}};
constexpr Name kInfo[] = {{kStatus, "status"}, {kPositive, "positive"},   {kNegative, "negative"},
                          {kZero, "zero"},     {kDelayed, "delayed"},     {kKept, "kept"},
                          {kMode, "mode"},     {kFirstNull, "first null"}};
constexpr Name kReal[] = {{kLogDet, "logdet"}, {kSmallestPivot, "smallest pivot"}, {kShift, "shift"}};

template <int N>
const char* find(const Name (&names)[N], int number) {
    for (const Name& name : names)
        if (name.number == number) return name.text;
    return nullptr;
}

static_assert(sizeof kInfo == kInfoSize * sizeof(Name) && sizeof kReal == kRealSize * sizeof(Name),
              "every field has a name");

}  // namespace

#define GNEWT_EXPORT extern "C" __attribute__((visibility("default")))
GNEWT_EXPORT const char* gnewt_engine_status_name(int number) { return find(kStatuses, number); }
GNEWT_EXPORT const char* gnewt_engine_mode_name(int number) { return find(kModes, number); }
GNEWT_EXPORT const char* gnewt_engine_info_name(int number) { return find(kInfo, number); }
GNEWT_EXPORT const char* gnewt_engine_real_name(int number) { return find(kReal, number); }
