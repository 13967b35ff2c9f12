// SPDX-License-Identifier: Apache-2.0
//
// MpiPauses: how long a wait for messages of MPI sleeps between two tests (mpi_transport.h says why).
#ifndef FSDP_COLLECTIVES_MPI_MPI_PAUSES_H_
#define FSDP_COLLECTIVES_MPI_MPI_PAUSES_H_

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {

class MpiPauses {
 public:
  // `has_long`: a long message is under way, which MPI sends in parts.
  explicit MpiPauses(bool has_long) : longest_(has_long ? kLongMessageNap : kLongestNap) { Restart(); }

  void Restart() {
    spin_end_ = SteadyNow() + kSpin;
    nap_ = kShortestNap;
  }

  // Zero: test again immediately.
  absl::Duration Next() {
    if (SteadyNow() < spin_end_) return absl::ZeroDuration();
    return std::exchange(nap_, std::min(2 * nap_, longest_));
  }

 private:
  static constexpr absl::Duration kSpin = absl::Microseconds(50);
  static constexpr absl::Duration kShortestNap = absl::Microseconds(10);
  static constexpr absl::Duration kLongestNap = absl::Milliseconds(1);
  static constexpr absl::Duration kLongMessageNap = absl::Microseconds(50);

  const absl::Duration longest_;
  absl::Time spin_end_;
  absl::Duration nap_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_MPI_MPI_PAUSES_H_
