// SPDX-License-Identifier: Apache-2.0
//
// fake_cudnn: cuDNN's backend on the emulated GPU, for tests. It makes the same checks as the real one (types of
// attributes, the order in which descriptors are finalised, the tensors that an execution binds and that they are
// inside of live memory) and offers three engines for every graph it accepts: one that is not deterministic, and two
// that are. In programs that link it, InstalledCudnn returns it once a test has installed it. This header injects
// faults and counts resources.
#ifndef FSDP_NN_CUDNN_FAKE_CUDNN_H_
#define FSDP_NN_CUDNN_FAKE_CUDNN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/nn/cudnn/cudnn_library.h"

namespace fsdp {

struct FakeCudnnFaults {
  // cudnnCreate fails.
  bool has_no_driver = false;
  // Only the engine that is not deterministic is offered.
  bool is_nondeterministic = false;
  // The heuristics offer no engine for heads of more columns.
  int64_t max_head_dim = 256;
  // The number of offered engines that make no plan, from the first on.
  int broken_engines = 0;
  // Executions fail with this message; empty: they succeed.
  std::string execution_failure = "";
};

// In effect until the next call. Thread-safe.
void SetFakeCudnnFaults(const FakeCudnnFaults& faults);

// The functions of the fake.
const CudnnLibrary& FakeCudnn();

// Makes InstalledCudnn return the fake, or no cuDNN, as at first. Thread-safe.
void InstallFakeCudnn(bool installed);

struct FakeCudnnCounts {
  int handles = 0;      // that were made and not destroyed
  int descriptors = 0;  // likewise

  int plans = 0;                         // that were made, ever
  int executions = 0;                    // that were put on a stream or captured, ever
  std::vector<int64_t> workspace_bytes;  // of each plan
};
FakeCudnnCounts CountFakeCudnn();

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_FAKE_CUDNN_H_
