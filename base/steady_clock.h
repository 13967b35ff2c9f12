// SPDX-License-Identifier: Apache-2.0
//
// SteadyNow: the clock of waits, deadlines and durations. An administrator or NTP may set the clock of the system
// (absl::Now) at any moment: a wait measured by it would end early, or last an hour longer. The clock of the system is
// only for dates that people or other programs read, and never compared with a date of another host or of a file
// (tests/layers_test.cc lists who may read it).
#ifndef FSDP_BASE_STEADY_CLOCK_H_
#define FSDP_BASE_STEADY_CLOCK_H_

#include "absl/time/time.h"

namespace fsdp {

// Never goes back, and advances by a second in each second that the machine is awake. Starts as absl::Now() at the
// first call in this process, so the two agree until the system's clock is set. Thread-safe.
absl::Time SteadyNow();

}  // namespace fsdp

#endif  // FSDP_BASE_STEADY_CLOCK_H_
