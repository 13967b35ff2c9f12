// SPDX-License-Identifier: Apache-2.0
//
// ValueStatistics: extremes, moments and a histogram of a tensor's elements, added up piece by piece in constant
// memory. The bins of the histogram are signs and binary exponents, so one pass shows values of any magnitude, from
// vanishing gradients to exploding weights.
#ifndef FSDP_CHECKPOINT_SOURCE_VALUE_STATISTICS_H_
#define FSDP_CHECKPOINT_SOURCE_VALUE_STATISTICS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/nonfinite.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct ValueStatistics {
  // Bin i counts magnitudes in [2^(kLowestExponent + i), 2^(kLowestExponent + i + 1)); the first bin also counts
  // smaller ones, the last bin larger ones.
  static constexpr int kLowestExponent = -36;
  static constexpr int kBins = 52;
  using Histogram = std::array<int64_t, kBins>;

  int64_t numel = 0;   // that were added
  int64_t unread = 0;  // elements that ReadStatistics has not read
  NonFinite nonfinite;
  int64_t zeros = 0;
  // These cover only the finite elements.
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double squares = 0;
  Histogram negative = {};
  Histogram positive = {};

  int64_t finite() const { return numel - nonfinite.nan - nonfinite.inf; }

  // Absent when no element is finite.
  std::optional<double> mean() const;
  std::optional<double> rms() const;
  std::optional<double> deviation() const;  // of the population

  void Add(const ValueStatistics& other);
};

// Adds `numel` elements at `data`, in host memory, aligned or not. A complex element counts as two, its parts.
absl::Status AddElements(DType dtype, const void* data, int64_t numel, ValueStatistics& statistics);

struct StatisticsOptions {
  int io_threads = 4;  // more than the cores of a small machine: some read while others add up
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
};

// The statistics of every tensor of an open checkpoint, read once, by pieces, in parallel, in bounded memory. Returns
// the error of the first tensor that cannot be read. ReadBound (expansion.h) limits the elements that are read: if the
// tensors of a checkpoint are much larger than its files, an element that a tensor has many times counts once, and
// ValueStatistics::unread counts the elements that are not read.
absl::StatusOr<std::map<StateKey, ValueStatistics>> ReadStatistics(const TensorSource& source,
                                                                   const StatisticsOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_VALUE_STATISTICS_H_
