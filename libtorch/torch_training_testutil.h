// SPDX-License-Identifier: Apache-2.0
//
// The same training of a test model twice: plain, and sharded over ranks that are threads.
#ifndef FSDP_LIBTORCH_TORCH_TRAINING_TESTUTIL_H_
#define FSDP_LIBTORCH_TORCH_TRAINING_TESTUTIL_H_

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/sharded_module.h"

namespace fsdp {

// Tensors by full name.
using TorchValues = std::map<std::string, at::Tensor>;

// The largest difference of two; infinite if names or shapes differ, or if a difference is NaN.
double LargestDifference(const TorchValues& a, const TorchValues& b);

struct TestTraining {
  int steps = 4;
  int forwards = 1;   // per backward; their losses are summed
  int backwards = 1;  // per step
  bool no_sync = false;
  bool split_rows = false;  // each rank has a part of dimension 0 of the input, otherwise all of it
  double lr = 1e-2, weight_decay = 0.1;
  bool adamw = true;  // else SGD with momentum
};

// Parameters and buffers after a plain training in this thread. In host memory, as all TorchValues here.
TorchValues TrainPlain(const std::string& model, const TestTraining& training, c10::Device device = at::kCPU);

// RunRanks, or the same with groups of another device.
using RunTestRanks = std::function<absl::Status(
    int ranks, const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main)>;
absl::Status RunHostRanks(int ranks, const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main);

// One of the two APIs.
struct TestSharding {
  FsdpOptions fsdp1 = {};
  bool use_fsdp2 = false;
  FullyShardOptions fsdp2 = {};
  std::vector<int> mesh = {};                // sizes; default: all ranks
  std::vector<std::string> unit_types = {};  // default: the model's
};

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardTestModel(const TestModel& model,
                                                              std::shared_ptr<ProcessGroup> group,
                                                              const TestSharding& sharding);

struct TrainedModel {
  TorchValues values;
  int64_t peak_bound_bytes = 0, total_bytes = 0, bound_after = 0;
  MemoryPlan plan;
  std::vector<std::string> warnings;
};

// The same training by torch::optim over LocalParameters, on this rank, on the group's device. Exceptions become
// kInternal.
absl::StatusOr<TrainedModel> TrainSharded(const std::string& model, std::shared_ptr<ProcessGroup> group,
                                          const TestSharding& sharding, const TestTraining& training);

// TrainSharded on `ranks` threads; returns rank 0's result.
absl::StatusOr<TrainedModel> TrainOnThreads(const std::string& model, int ranks, const TestSharding& sharding,
                                            const TestTraining& training, const RunTestRanks& run = RunHostRanks);

// Bytes of the group's device in a training of "tied_transformer" of three steps without an optimizer.
struct PlannedMemory {
  int64_t planned = 0;  // by MemoryPlan, and the buffers, which are whole on each rank and not of the plan
  int64_t taken = 0;    // at most
};
absl::StatusOr<PlannedMemory> TakePlannedMemory(std::shared_ptr<ProcessGroup> group, const TestSharding& sharding);

// Whole parameters and buffers. Collective.
absl::StatusOr<TorchValues> FullValues(ShardedModule& sharded);

// Runs `body`, whose exceptions become kInternal.
absl::Status Caught(const std::function<absl::Status()>& body);

// The message of the c10::Error that `body` throws; "" if it throws nothing.
std::string ErrorOf(const std::function<void()>& body);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_TORCH_TRAINING_TESTUTIL_H_
