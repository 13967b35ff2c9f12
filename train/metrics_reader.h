// SPDX-License-Identifier: Apache-2.0
//
// ReadMetrics: what MetricsWriter wrote, read back; also while the run that writes it goes on.
#ifndef FSDP_TRAIN_METRICS_READER_H_
#define FSDP_TRAIN_METRICS_READER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/train/metrics_writer.h"

namespace fsdp {

// The steps in a metrics file, in the order of its lines; a last line without a newline does not count yet. A null is
// NaN. kNotFound when there is no file, kInvalidArgument naming the line that is not one of ours.
absl::StatusOr<std::vector<StepMetrics>> ReadMetrics(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_METRICS_READER_H_
