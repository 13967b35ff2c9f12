// SPDX-License-Identifier: Apache-2.0
//
// What a program that uses HDF5 itself does: H5Dwrite and H5Dread of contiguous, aligned datasets that are never
// filled.
#ifndef FSDP_CHECKPOINT_BENCHMARK_HDF5_BASELINE_H_
#define FSDP_CHECKPOINT_BENCHMARK_HDF5_BASELINE_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/benchmark/benchmark_tensors.h"

namespace fsdp {

// Writes the saved tensors to a new file, and fsyncs it.
absl::Status WriteByHdf5(const BenchmarkTensors& tensors, const std::string& path);

// Reads them into the loaded ones.
absl::Status ReadByHdf5(const BenchmarkTensors& tensors, const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_HDF5_BASELINE_H_
