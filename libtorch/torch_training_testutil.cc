// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/torch_training_testutil.h"

#include <torch/optim.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {
namespace {

std::unique_ptr<torch::optim::Optimizer> OptimizerOf(const std::vector<at::Tensor>& tensors, const TestTraining& t) {
  namespace optim = torch::optim;
  if (t.adamw) {
    return std::make_unique<optim::AdamW>(tensors, optim::AdamWOptions(t.lr).weight_decay(t.weight_decay));
  }
  return std::make_unique<optim::SGD>(tensors, optim::SGDOptions(t.lr).momentum(0.9).weight_decay(t.weight_decay));
}

// One step; `forward` is plain or within ShardedModule::Forward.
void Step(const std::function<at::Tensor(const at::Tensor&)>& forward, const std::function<at::Tensor(int)>& input,
          int step, const TestTraining& t, const std::function<void(int backward)>& before_backward) {
  for (int b = 0; b < t.backwards; ++b) {
    before_backward(b);
    // In float32: losses of several forwards are summed, and their outputs may be bfloat16.
    at::Tensor loss = at::zeros({});
    for (int f = 0; f < t.forwards; ++f) {
      // Each forward of each backward has its own input.
      loss = loss + forward(input(step + 100 * f + 1000 * b)).to(at::kFloat).square().mean();
    }
    loss.backward();
  }
}

template <typename Module>
TorchValues ValuesOf(const Module& module) {
  TorchValues values;
  // A copy, since the training continues to change the tensors.
  const auto copy = [](const at::Tensor& tensor) { return tensor.detach().cpu().clone(); };
  if constexpr (std::is_same_v<Module, torch::jit::Module>) {
    for (const auto& item : module.named_parameters()) values[item.name] = copy(item.value);
    for (const auto& item : module.named_buffers()) values[item.name] = copy(item.value);
  } else {
    for (const auto& item : module.named_parameters()) values[item.key()] = copy(item.value());
    for (const auto& item : module.named_buffers()) values[item.key()] = copy(item.value());
  }
  return values;
}

}  // namespace

double LargestDifference(const TorchValues& a, const TorchValues& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !other->second.sizes().equals(value.sizes())) {
      return std::numeric_limits<double>::infinity();
    }
    // max() of an empty tensor throws.
    if (value.numel() == 0) continue;
    const at::Tensor difference = (value.to(at::kDouble) - other->second.to(at::kDouble)).abs();
    const auto most = difference.max().item<double>();  // NaN if any element is
    if (std::isnan(most)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, most);
  }
  return largest;
}

TorchValues TrainPlain(const std::string& name, const TestTraining& training, c10::Device device) {
  at::set_num_threads(1);  // sums by several threads differ in the last bit
  const TestModel model = MakeTestModel(name, device);
  const auto optimizer = OptimizerOf(model.parameters(), training);
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    Step(model.forward, model.input, step, training, [](int) {});
    optimizer->step();
  }
  return model.module != nullptr ? ValuesOf(*model.module) : ValuesOf(*model.script);
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardTestModel(const TestModel& model,
                                                              std::shared_ptr<ProcessGroup> group,
                                                              const TestSharding& sharding) {
  const std::vector<std::string> types = sharding.unit_types.empty() ? model.unit_types : sharding.unit_types;
  const ModulePredicate units = [types](const Module& module) {
    return std::find(types.begin(), types.end(), module.type_name()) != types.end();
  };
  if (sharding.use_fsdp2) {
    const std::vector<int> sizes = sharding.mesh.empty() ? std::vector<int>{group->size()} : sharding.mesh;
    std::vector<std::string> names = {"replicate", "shard"};
    // The names of the last dimensions: a mesh of one has only "shard".
    names.erase(names.begin(), names.end() - sizes.size());
    FSDP_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create(group, sizes, names));
    return model.module != nullptr ? FullyShard(*model.module, mesh, units, sharding.fsdp2)
                                   : FullyShard(*model.script, mesh, units, sharding.fsdp2);
  }
  FsdpOptions options = sharding.fsdp1;
  // A test may bring its own policy; the default wraps the classes of the model.
  if (!options.auto_wrap_policy) options.auto_wrap_policy = LambdaWrapPolicy(units);
  return model.module != nullptr ? Shard(*model.module, std::move(group), options)
                                 : Shard(*model.script, std::move(group), options);
}

absl::Status Caught(const std::function<absl::Status()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(MessageOf(error));
  }
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return MessageOf(error);
  }
  return "";
}

absl::StatusOr<TorchValues> FullValues(ShardedModule& sharded) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state, sharded.fsdp().GetStateDict());
  Stream& stream = sharded.stream();
  TorchValues values;
  for (const auto& [key, value] : state.entries()) {
    // The default state dict type is FULL, so shards[0] is the whole tensor.
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kModel) continue;
    const Tensor& data = tensor->shards[0].data;
    at::Tensor& copy = values[key.fqn];
    copy = at::empty(SizesOf(tensor->shape), ScalarTypeOf(data.dtype()));
    stream.CopyAsync(copy.data_ptr(), data.data(), data.nbytes());
  }
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  // A state dict has a shared parameter once, a module under each of its names.
  for (const auto& [alias, name] : state.aliases) values[alias] = values.at(name);
  return values;
}

absl::StatusOr<TrainedModel> TrainSharded(const std::string& name, std::shared_ptr<ProcessGroup> group,
                                          const TestSharding& sharding, const TestTraining& training) {
  at::set_num_threads(1);
  const TestModel model = MakeTestModel(name, TorchDeviceOf(*group->device()));
  TrainedModel trained;
  for (const at::Tensor& tensor : model.parameters()) trained.total_bytes += static_cast<int64_t>(tensor.nbytes());
  FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding));
  const auto optimizer = OptimizerOf(sharded->LocalParameters(), training);
  // Rows must not depend on each other along row_dimension.
  const auto input = [&](int seed) {
    const at::Tensor all = model.input(seed);
    if (!training.split_rows) return all;
    const int64_t rows = all.size(model.row_dimension) / group->size();
    return all.narrow(model.row_dimension, rows * group->rank(), rows);
  };
  const auto forward = [&](const at::Tensor& x) { return sharded->Forward(model.forward, x); };
  FSDP_RETURN_IF_ERROR(Caught([&] {
    for (int step = 0; step < training.steps; ++step) {
      optimizer->zero_grad();
      // The guard must cover forward and backward of each backward except the last.
      std::optional<NoSyncGuard> no_sync;
      Step(forward, input, step, training, [&](int backward) {
        no_sync.reset();
        if (training.no_sync && backward + 1 < training.backwards) no_sync.emplace(sharded->fsdp());
      });
      optimizer->step();
    }
    return absl::OkStatus();
  }));
  // Before FullValues, which is not part of the training.
  trained.peak_bound_bytes = sharded->TakePeakBoundBytes();
  trained.bound_after = sharded->bound_bytes();
  trained.plan = sharded->fsdp().memory_plan();
  trained.warnings = sharded->fsdp().warnings();
  FSDP_ASSIGN_OR_RETURN(trained.values, FullValues(*sharded));
  return trained;
}

absl::StatusOr<PlannedMemory> TakePlannedMemory(std::shared_ptr<ProcessGroup> group, const TestSharding& sharding) {
  Device& device = *group->device();
  const TestModel model = MakeTestModel("tied_transformer", TorchDeviceOf(device));
  // The model's own tensors are LibTorch's, and are not counted.
  const int64_t before = device.allocated_bytes();
  FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding));
  PlannedMemory memory{.planned = sharded->fsdp().memory_plan().DeviceBytes(false)};
  for (const at::Tensor& buffer : model.module->buffers()) memory.planned += static_cast<int64_t>(buffer.nbytes());
  // Counts the steps only: Shard itself reads the unsharded model.
  device.ResetPeak();
  FSDP_RETURN_IF_ERROR(Caught([&] {
    for (int step = 0; step < 3; ++step) {
      sharded->Forward(model.forward, model.input(step)).to(at::kFloat).square().mean().backward();
    }
    return absl::OkStatus();
  }));
  FSDP_RETURN_IF_ERROR(sharded->stream().Synchronize());
  memory.taken = device.peak_allocated_bytes() - before;
  return memory;
}

absl::Status RunHostRanks(int ranks,
                          const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main) {
  return RunRanks(ranks, rank_main);
}

absl::StatusOr<TrainedModel> TrainOnThreads(const std::string& model, int ranks, const TestSharding& sharding,
                                            const TestTraining& training, const RunTestRanks& run) {
  TrainedModel first;
  FSDP_RETURN_IF_ERROR(run(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const bool is_first = group->rank() == 0;
    FSDP_ASSIGN_OR_RETURN(TrainedModel trained, TrainSharded(model, group, sharding, training));
    if (is_first) first = std::move(trained);
    return absl::OkStatus();
  }));
  return first;
}

}  // namespace fsdp
