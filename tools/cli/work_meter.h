// SPDX-License-Identifier: Apache-2.0
//
// WorkMeter: how much of some work is done, and how long the rest will take. Work is bytes and tensors: a tensor of a
// few hundred bytes takes as long as several kilobytes, because its name is looked up, laid out and written. Pure: the
// caller passes the time. Used by one thread at a time.
#ifndef FSDP_TOOLS_CLI_WORK_METER_H_
#define FSDP_TOOLS_CLI_WORK_METER_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace fsdp {

// Work of which `bytes_done` of `bytes_total` are done: `bytes_measured` of them, the last ones, in `elapsed`. The same
// for tensors, each of which counts as often as the work comes back to it; a total of 0: only bytes are counted.
struct MeasuredWork {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  int64_t bytes_measured = 0;
  absl::Duration elapsed;
  int64_t tensors_done = 0;
  int64_t tensors_total = 0;
  int64_t tensors_measured = 0;

  // All of it. More may be done than was expected, such as a file that grows.
  bool is_done() const { return bytes_done >= bytes_total && tensors_done >= tensors_total; }

  // The part of the time that is over, from 0 to 1.
  double fraction() const;

  // The time that the rest will take; nullopt while it is uncertain: in the first second, before anything is done, and
  // beyond 30 years. It is true within a factor of two if bytes move at 0.4 to 1.6 GB/s where a tensor takes 5 µs.
  std::optional<absl::Duration> TimeLeft() const;
};

class WorkMeter {
 public:
  // Sets what is done, and the totals, which may change. The time is measured from the first call of either.
  void SetBytes(int64_t done, int64_t total, absl::Time now);
  void SetTensors(int64_t done, int64_t total, absl::Time now);

  bool has_started() const { return first_.has_value(); }

  // Precondition: has_started().
  MeasuredWork Measured(absl::Time now) const;

 private:
  void Start(absl::Time now, int64_t bytes_done, int64_t tensors_done);

  std::optional<absl::Time> first_;  // time of the first call
  int64_t first_bytes_ = 0;          // done by then
  int64_t first_tensors_ = 0;
  MeasuredWork work_;
};

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_WORK_METER_H_
