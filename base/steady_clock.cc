// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/steady_clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace fsdp {
namespace {

absl::Duration SinceBoot() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace

absl::Time SteadyNow() {
  static const absl::Time boot = absl::Now() - SinceBoot();
  return boot + SinceBoot();
}

}  // namespace fsdp
