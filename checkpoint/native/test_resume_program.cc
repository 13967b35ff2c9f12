// SPDX-License-Identifier: Apache-2.0
//
// A program that only saves and resumes: continues from the newest checkpoint in its argument, a directory, adds one to
// every element of its state, saves it as the next step in the background, verifies it, and deletes all but the newest
// two. native_symbols_test examines its binary for the symbols that a program links through //checkpoint/native.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/checkpoint/native/native_checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {
namespace {

constexpr int64_t kNumel = 1000;

// Zeros, in host memory.
StateDict NewState() {
  const auto elements = std::make_shared<std::vector<float>>(kNumel);
  Buffer buffer(reinterpret_cast<std::byte*>(elements->data()), kNumel * SizeOf(DType::kFloat32), [elements] {});
  ShardedTensor tensor;
  tensor.dtype = DType::kFloat32;
  tensor.shape = {kNumel};
  tensor.shards.push_back({{0, kNumel}, Tensor(std::move(buffer), DType::kFloat32, {kNumel})});
  StateDict state;
  state.Set(StateKey::Model("weight"), std::move(tensor));
  return state;
}

absl::Status Continue(const std::string& root, ProcessGroup& group) {
  StateDict state = NewState();
  int64_t step = 0;
  const absl::StatusOr<std::string> newest = LatestCheckpoint(root);
  if (newest.ok()) {
    FSDP_RETURN_IF_ERROR(LoadNativeCheckpoint(*newest, state));
    FSDP_ASSIGN_OR_RETURN(step, NativeCheckpointStep(*newest));
  } else if (!absl::IsNotFound(newest.status())) {
    return newest.status();
  }
  ShardedTensor tensor = *state.FindTensor(StateKey::Model("weight"));
  float* const elements = tensor.shards[0].data.data_as<float>();
  for (int64_t i = 0; i < kNumel; ++i) elements[i] += 1;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncSaver> saver, AsyncSaver::Create(root, group));
  FSDP_RETURN_IF_ERROR(saver->Save(state, step + 1).status());
  FSDP_ASSIGN_OR_RETURN(const std::string path, saver->Wait());
  FSDP_ASSIGN_OR_RETURN(const VerifyReport report, VerifyCheckpoint(path));
  if (!report.problems.empty()) return absl::DataLossError(report.problems[0]);
  std::printf("step %d, element 0 is %g\n", static_cast<int>(step + 1), static_cast<double>(elements[0]));
  return PruneCheckpoints(root, 2);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const absl::Status status =
      fsdp::RunRanks(1, [&](std::shared_ptr<fsdp::ProcessGroup> group) { return fsdp::Continue(argv[1], *group); });
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
