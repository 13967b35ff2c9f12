// SPDX-License-Identifier: Apache-2.0
//
// The baseline of a program that calls HDF5 directly: H5Dwrite and H5Dread of contiguous, aligned datasets without fill
// values.
#ifndef FSDP_CHECKPOINT_BENCHMARK_HDF5_BASELINE_H_
#define FSDP_CHECKPOINT_BENCHMARK_HDF5_BASELINE_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/benchmark/benchmark_tensors.h"

namespace fsdp {

// Writes the saved tensors to a new file, and fsyncs it.
absl::Status WriteByHdf5(const BenchmarkTensors& tensors, const std::string& path);

// Reads such a file into the loaded tensors.
absl::Status ReadByHdf5(const BenchmarkTensors& tensors, const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_HDF5_BASELINE_H_
