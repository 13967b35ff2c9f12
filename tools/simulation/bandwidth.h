// SPDX-License-Identifier: Apache-2.0
//
// Bandwidths as people write them: "400gbit", "2.5GB/s", "100mbit".
#ifndef FSDP_TOOLS_SIMULATION_BANDWIDTH_H_
#define FSDP_TOOLS_SIMULATION_BANDWIDTH_H_

#include <string_view>

#include "absl/status/statusor.h"

namespace fsdp {

// Parses a number with a unit into bytes per second: bit, kbit, mbit, gbit, tbit (per second, as in tc), B/s, kB/s,
// MB/s, GB/s, TB/s, all by powers of 1000. kInvalidArgument for another unit, and for a number that is not finite and
// above 0.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_BANDWIDTH_H_
