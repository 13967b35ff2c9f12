// SPDX-License-Identifier: Apache-2.0
//
// Parameters that shard_placement_fn cuts on another dimension than 0: the same training, states and checkpoints, in
// every bit, as with parameters that are cut on dimension 0.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Bytes = std::map<std::string, std::string>;

// Which dimension each parameter is cut on.
enum class Cut { kRows, kOther };

// Weights by columns, the parameter of three dimensions by the one in the middle, biases as always.
std::optional<int> OtherDim(const Parameter& parameter) {
  if (parameter.shape.rank() == 1) return std::nullopt;
  return parameter.shape.rank() == 2 ? -1 : 1;
}

// Two layers and a parameter [2, 12, 3] that no forward uses, in three units; AdamW over them.
struct Trained {
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<TestSequence> model;
  FsdpModule* root = nullptr;
  std::unique_ptr<AdamW> optimizer;

  static absl::StatusOr<Trained> Make(std::shared_ptr<ProcessGroup> group, Cut cut, FullyShardOptions options,
                                      int replicas = 1) {
    Trained made;
    made.group = std::move(group);
    const int ranks = made.group->size();
    absl::StatusOr<std::shared_ptr<const DeviceMesh>> mesh =
        replicas == 1 ? DeviceMesh::Create(made.group, {ranks}, {"shard"})
                      : DeviceMesh::Create(made.group, {replicas, ranks / replicas}, {"replicate", "shard"});
    FSDP_RETURN_IF_ERROR(mesh.status());
    if (cut == Cut::kOther) options.shard_placement_fn = OtherDim;
    made.model = std::make_unique<TestSequence>();
    FSDP_RETURN_IF_ERROR(FullyShard(*made.model->AddLinear(12, 24), *mesh, options).status());
    TestSequence* inner = made.model->AddSequence();
    inner->AddLinear(24, 12);
    inner->AddUnused("unused", {2, 12, 3});
    FSDP_RETURN_IF_ERROR(FullyShard(*inner, *mesh, options).status());
    made.model->AddLinear(12, 12);
    FSDP_ASSIGN_OR_RETURN(made.root, FullyShard(*made.model, *mesh, options));
    FSDP_ASSIGN_OR_RETURN(const auto parameters, made.root->parameters());
    made.optimizer = std::make_unique<AdamW>(AdamW::DecayMatricesOnly(parameters, {.lr = 1e-2, .weight_decay = 0.1}));
    return made;
  }

  absl::Status ForwardAndBackward(int step) const {
    Device& device = *group->device();
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(device, DType::kFloat32, {2, 12}));
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.data_as<float>()[i] = 0.125f * static_cast<float>((group->rank() + 1) * (i - 7) + step);
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor ones, Tensor::Empty(device, DType::kFloat32, y.shape()));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Tensor::Empty(device, y.dtype(), y.shape()));
    for (int64_t i = 0; i < ones.numel(); ++i) ones.data_as<float>()[i] = static_cast<float>(i % 5 - 2);
    device.ops().CastDivide(ones, grad, 1, tape.stream());
    FSDP_RETURN_IF_ERROR(model->Backward(grad, tape).status());
    return tape.stream().Synchronize();
  }

  absl::Status Train(int steps) const {
    for (int step = 0; step < steps; ++step) {
      FSDP_RETURN_IF_ERROR(ForwardAndBackward(step));
      FSDP_ASSIGN_OR_RETURN(const Tape tape, root->NewTape());
      FSDP_RETURN_IF_ERROR(optimizer->Step(tape.stream()));
      optimizer->ZeroGrad();
      FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    }
    return absl::OkStatus();
  }

  // Model and optimizer.
  absl::StatusOr<StateDict> State(StateDictType type) const {
    if (type == StateDictType::kFull) {
      FSDP_ASSIGN_OR_RETURN(StateDict state, root->GetFullStateDict({.offload_to_cpu = true}));
      FSDP_RETURN_IF_ERROR(root->AddOptimStateDict(*optimizer, state, FullOptimStateDictConfig()));
      return state;
    }
    FSDP_ASSIGN_OR_RETURN(StateDict state, root->GetStateDict());
    FSDP_RETURN_IF_ERROR(root->AddOptimStateDict(*optimizer, state));
    return state;
  }

  absl::StatusOr<Bytes> Wholes() const {
    FSDP_ASSIGN_OR_RETURN(const StateDict state, State(StateDictType::kFull));
    Bytes bytes;
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      const Tensor& data = tensor->shards.at(0).data;
      EXPECT_EQ(data.numel(), tensor->shape.numel()) << key.ToString();
      bytes[key.ToString()].assign(data.data_as<const char>(), data.nbytes());
    }
    return bytes;
  }
};

// The wholes on rank 0 after three steps.
Bytes TrainedBytes(int ranks, int replicas, Cut cut, const FullyShardOptions& options) {
  Bytes bytes;
  EXPECT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, cut, options, replicas));
    FSDP_RETURN_IF_ERROR(made.Train(3));
    FSDP_ASSIGN_OR_RETURN(const Bytes mine, made.Wholes());
    if (group->rank() == 0) bytes = mine;
    return absl::OkStatus();
  }));
  return bytes;
}

TEST(ShardPlacementTest, AnotherDimensionTrainsToTheBitsOfDimension0) {
  const MixedPrecisionPolicy mixed{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  const std::vector<std::tuple<int, int, FullyShardOptions>> runs = {
      {1, 1, {}},
      {2, 1, {}},
      {3, 1, {.reshard_after_forward = true}},
      {4, 1, {.reshard_after_forward = 2}},
      {4, 2, {}},
      {3, 1, {.mp_policy = mixed}},
      {3, 1, {.mp_policy = mixed, .optimizer_casts = true}},
      {2, 1, {.offload_policy = CpuOffloadPolicy{}}},
      {2, 1, {.activation_checkpointing = true}}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& [ranks, replicas, options] = runs[i];
    const Bytes wanted = TrainedBytes(ranks, replicas, Cut::kRows, options);
    EXPECT_EQ(wanted.size(), 7u + 3 * 6) << i;  // weights and biases with steps and two moments each, and the unused
    EXPECT_EQ(TrainedBytes(ranks, replicas, Cut::kOther, options), wanted) << i;
  }
}

TEST(ShardPlacementTest, EachRankHoldsItsPartOfEveryRow) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, Cut::kOther, {}));
    FSDP_ASSIGN_OR_RETURN(const Bytes wholes, made.Wholes());
    FSDP_ASSIGN_OR_RETURN(const auto parameters, made.root->parameters());
    const int64_t rank = group->rank();
    for (const ShardedParameter* parameter : parameters) {
      if (parameter->fqn != "1.unused" && parameter->fqn != "0.weight") continue;
      // [2, 12, 3] on dimension 1: four rows of 3 of each of 2; [12, 24] on dimension 1: eight columns of each row.
      const bool cube = parameter->fqn == "1.unused";
      const int64_t outer = cube ? 2 : 12, run = cube ? 4 * 3 : 8;
      EXPECT_EQ(parameter->shape, cube ? Shape({2, 4, 3}) : Shape({12, 8}));
      EXPECT_EQ(parameter->whole_shape(), cube ? Shape({2, 12, 3}) : Shape({12, 24}));
      EXPECT_EQ(parameter->data.numel(), outer * run);
      const auto* whole = reinterpret_cast<const float*>(wholes.at("model/" + parameter->fqn).data());
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < run; ++i) {
          EXPECT_EQ(parameter->data.data_as<float>()[o * run + i], whole[o * 3 * run + rank * run + i]);
        }
      }
    }
    return absl::OkStatus();
  }));
}

TEST(ShardPlacementTest, TheShardedStateHasRowsOfWholeTensorsAndLoadsIntoEitherCut) {
  StateCollector sharded, full;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, Cut::kOther, {}));
    FSDP_RETURN_IF_ERROR(made.Train(2));
    FSDP_ASSIGN_OR_RETURN(const Bytes wanted, made.Wholes());
    for (const StateDictType type : {StateDictType::kSharded, StateDictType::kFull}) {
      FSDP_ASSIGN_OR_RETURN(const StateDict state, made.State(type));
      EXPECT_EQ(state.type, type);
      (type == StateDictType::kFull ? full : sharded).Add(state);
      for (const Cut cut : {Cut::kRows, Cut::kOther}) {
        FSDP_ASSIGN_OR_RETURN(const Trained other, Trained::Make(group, cut, {.init_seed = 7}));
        FSDP_RETURN_IF_ERROR(other.root->LoadStateDict(state).status());
        FSDP_RETURN_IF_ERROR(other.root->LoadOptimStateDict(state, *other.optimizer).status());
        FSDP_ASSIGN_OR_RETURN(const Bytes got, other.Wholes());
        EXPECT_EQ(got, wanted);
      }
    }
    // And the other way.
    FSDP_ASSIGN_OR_RETURN(const Trained rows, Trained::Make(group, Cut::kRows, {.init_seed = 9}));
    FSDP_RETURN_IF_ERROR(rows.Train(1));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, rows.State(StateDictType::kSharded));
    FSDP_RETURN_IF_ERROR(made.root->LoadStateDict(state).status());
    FSDP_RETURN_IF_ERROR(made.root->LoadOptimStateDict(state, *made.optimizer).status());
    FSDP_ASSIGN_OR_RETURN(const Bytes theirs, rows.Wholes());
    FSDP_ASSIGN_OR_RETURN(const Bytes mine, made.Wholes());
    EXPECT_EQ(mine, theirs);
    return absl::OkStatus();
  }));
  sharded.ExpectCovered();
  ExpectSame(sharded, full);
}

TEST(ShardPlacementTest, AFullStateOfRank0AloneIsLoaded) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Trained from, Trained::Make(group, Cut::kRows, {.init_seed = 5}));
    FSDP_ASSIGN_OR_RETURN(const Bytes wanted, from.Wholes());
    FSDP_ASSIGN_OR_RETURN(const StateDict state, from.root->GetFullStateDict({.rank0_only = true}));
    FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, Cut::kOther, {}));
    FSDP_RETURN_IF_ERROR(made.root->LoadStateDict(state, {.broadcast_from_rank0 = true}).status());
    FSDP_ASSIGN_OR_RETURN(const Bytes got, made.Wholes());
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

// A new directory under the test's own.
std::string NewRoot() {
  std::string pattern = testing::TempDir() + "/placement-XXXXXX";
  return mkdtemp(pattern.data());
}

TEST(ShardPlacementTest, ACheckpointGoesFromAnyCutAndRanksToAnyOtherWithoutAChangedBit) {
  const std::vector<std::pair<int, Cut>> runs = {{3, Cut::kOther}, {2, Cut::kOther}, {4, Cut::kRows},
                                                 {6, Cut::kOther}, {1, Cut::kOther}, {3, Cut::kRows}};
  for (const StateDictType type : {StateDictType::kSharded, StateDictType::kFull}) {
    const std::string root = NewRoot();
    std::string path;
    Bytes first;
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto& [ranks, cut] = runs[i];
      std::string saved;
      ASSERT_OK(RunRanks(ranks, [&, cut = cut](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, cut, {.init_seed = i}));
        if (i == 0) {
          FSDP_RETURN_IF_ERROR(made.Train(2));
        } else {
          const auto load = [&](StateDict& wanted) { return LoadCheckpoint(path, wanted); };
          FSDP_RETURN_IF_ERROR(made.root->Restore(made.optimizer.get(), load).status());
        }
        FSDP_ASSIGN_OR_RETURN(const Bytes state, made.Wholes());
        if (i == 0 && group->rank() == 0) first = state;
        if (i > 0) {
          EXPECT_EQ(state, first) << i;
        }
        FSDP_ASSIGN_OR_RETURN(const StateDict part, made.State(type));
        FSDP_ASSIGN_OR_RETURN(const std::string done, SaveCheckpoint(part, root, static_cast<int64_t>(i), *group));
        if (group->rank() == 0) saved = done;
        return absl::OkStatus();
      })) << i;
      path = saved;
      EXPECT_OK(VerifyCheckpoint(path)) << path;
    }
  }
}

TEST(ShardPlacementTest, SummonedParametersAreWholeAndEditsComeBack) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, Cut::kOther, {}));
    FSDP_ASSIGN_OR_RETURN(const Bytes before, made.Wholes());
    FSDP_RETURN_IF_ERROR(made.ForwardAndBackward(0));
    FSDP_ASSIGN_OR_RETURN(const Tensor gradient, made.root->GetFullGradient("0.weight"));
    {
      FSDP_ASSIGN_OR_RETURN(const auto guard, made.root->SummonFullParams({.with_grads = true}));
      for (const auto& [name, parameter] : made.model->NamedParameters()) {
        EXPECT_EQ(std::memcmp(parameter->data.data(), before.at("model/" + name).data(), parameter->data.nbytes()), 0);
        for (int64_t i = 0; i < parameter->data.numel(); ++i) parameter->data.data_as<float>()[i] += 1;
        if (name != "0.weight") continue;
        EXPECT_EQ(std::memcmp(parameter->grad.data(), gradient.data(), gradient.nbytes()), 0);
        for (int64_t i = 0; i < gradient.numel(); ++i) parameter->grad.data_as<float>()[i] = static_cast<float>(i);
      }
      FSDP_RETURN_IF_ERROR(guard->Close());
    }
    FSDP_ASSIGN_OR_RETURN(const Bytes after, made.Wholes());
    for (const auto& [name, bytes] : before) {
      const auto* old_values = reinterpret_cast<const float*>(bytes.data());
      const auto* new_values = reinterpret_cast<const float*>(after.at(name).data());
      for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) EXPECT_EQ(new_values[i], old_values[i] + 1) << name;
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor edited, made.root->GetFullGradient("0.weight"));
    for (int64_t i = 0; i < edited.numel(); ++i) EXPECT_EQ(edited.data_as<float>()[i], static_cast<float>(i));
    return absl::OkStatus();
  }));
}

TEST(ShardPlacementTest, ClippingSeesTheNormOfTheWholeModel) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    float norms[2];
    for (const Cut cut : {Cut::kRows, Cut::kOther}) {
      FSDP_ASSIGN_OR_RETURN(const Trained made, Trained::Make(group, cut, {}));
      FSDP_RETURN_IF_ERROR(made.ForwardAndBackward(0));
      FSDP_ASSIGN_OR_RETURN(norms[static_cast<int>(cut)], made.root->ClipGradNorm(1.0f));
    }
    EXPECT_GT(norms[0], 0);
    EXPECT_NEAR(norms[1], norms[0], 1e-5 * norms[0]);  // the order of the sum differs
    return absl::OkStatus();
  }));
}

TEST(ShardPlacementTest, RanksThatCutUnlikeGetAnError) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) {
    return Trained::Make(group, group->rank() == 0 ? Cut::kRows : Cut::kOther, {}).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("sharded dimension of parameter"), HasSubstr("weight"))));
}

}  // namespace
}  // namespace fsdp
