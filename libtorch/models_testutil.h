// SPDX-License-Identifier: Apache-2.0
//
// Models of LibTorch for tests, and the same training of them twice: plain, and sharded over ranks that are threads.
#ifndef FSDP_LIBTORCH_MODELS_TESTUTIL_H_
#define FSDP_LIBTORCH_MODELS_TESTUTIL_H_

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/script.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/libtorch/sharded_module.h"

namespace fsdp {

// One test model, with the calls that tests make.
struct TestModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::jit::Module> script;
  std::function<at::Tensor(const at::Tensor& input)> forward;
  std::function<at::Tensor(int seed)> input;
  std::vector<std::string> unit_types;  // the classes that are units
  c10::Device device = at::kCPU;        // of parameters and inputs
  int64_t row_dimension = 0;            // of the input: rows do not see each other

  std::vector<at::Tensor> parameters() const;
};

// A model by name, with the same initial values at each call: "mlp", "tied_transformer", "transformer_encoder",
// "conv_net", "lstm", "mixture_of_experts", "odd_net" (branches, a unit that runs twice, one that never runs,
// parameters that are not used, a frozen one, a custom autograd Function), "script". The values, and the inputs,
// are the same on every device, and in another `dtype` the same values rounded. From any thread.
TestModel MakeTestModel(const std::string& name, c10::Device device = at::kCPU, at::ScalarType dtype = at::kFloat);
const std::vector<std::string>& TestModelNames();

// Tensors by full name.
using TorchValues = std::map<std::string, at::Tensor>;

// The largest difference of two; infinite if names or shapes differ.
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

#endif  // FSDP_LIBTORCH_MODELS_TESTUTIL_H_
