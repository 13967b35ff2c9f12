// SPDX-License-Identifier: Apache-2.0
//
// For tests of sharded modules on a GPU: ranks as threads that share GPU 0, LibTorch set so that its kernels give the
// same bits each time, and an end to tests that hang.
#ifndef FSDP_LIBTORCH_GPU_RANKS_TESTUTIL_H_
#define FSDP_LIBTORCH_GPU_RANKS_TESTUTIL_H_

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "fsdp/collectives/group/process_group.h"
#include "gtest/gtest.h"

namespace fsdp {

// GPU 0, the device of all ranks.
inline c10::Device TestGpu() { return c10::Device(c10::kCUDA, 0); }

// RunRanks on GPU 0, with a device for each rank.
absl::Status RunGpuRanks(int ranks, const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main);

// Skips if there is no GPU, or if LibTorch has no support for it.
class GpuRanksTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// Instead of RUN_ALL_TESTS; call it in main before any use of LibTorch. A test that takes over 40 s ends the process,
// with a message that names the test and has the stack of each thread.
int RunGpuTests(int argc, char** argv);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_GPU_RANKS_TESTUTIL_H_
