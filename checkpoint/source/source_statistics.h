// SPDX-License-Identifier: Apache-2.0
//
// ReadStatistics: the statistics of every tensor of an open checkpoint, read once, by pieces, in parallel, in bounded
// memory.
#ifndef FSDP_CHECKPOINT_SOURCE_SOURCE_STATISTICS_H_
#define FSDP_CHECKPOINT_SOURCE_SOURCE_STATISTICS_H_

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/value_statistics.h"

namespace fsdp {

struct StatisticsOptions {
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
};

// The error of the first tensor that cannot be read.
absl::StatusOr<std::map<StateKey, ValueStatistics>> ReadStatistics(const TensorSource& source,
                                                                   const StatisticsOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SOURCE_STATISTICS_H_
