// SPDX-License-Identifier: Apache-2.0
//
// Frozen parameters of other dtypes next to trained ones in a unit of FullyShard, as in QLoRA: they are gathered as
// they are by the unit's one all-gather, are in every state with their dtype, and change nothing for the others.
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Extra {
  DType dtype;
  Shape shape;
};

// Sizes that no number of ranks above 1 divides, and fewer rows than ranks.
const std::vector<Extra>& Extras() {
  static const auto* const extras = new std::vector<Extra>{
      {DType::kBFloat16, {5, 3}},      {DType::kUInt8, {7, 5}}, {DType::kInt8, {3}},   {DType::kFloat8E4M3FN, {11, 2}},
      {DType::kFloat8E5M2, {1, 13}},   {DType::kInt32, {5}},    {DType::kInt64, {3}},  {DType::kUInt8, {2, 2, 3}},
      {DType::kFloat8E8M0FNU, {9, 1}}, {DType::kFloat16, {6}},  {DType::kUInt16, {4}},
  };
  return *extras;
}

using Bytes = std::map<std::string, std::string>;

std::string BytesOf(const Tensor& t) { return std::string(static_cast<const char*>(t.data()), t.nbytes()); }

// Adds them to `module`, with bytes that depend on `seed`.
absl::Status AddExtras(TestSequence& module, Device& device, int seed) {
  for (size_t i = 0; i < Extras().size(); ++i) {
    const std::shared_ptr<Parameter> parameter = module.AddUnused(absl::StrCat("extra", i), Extras()[i].shape);
    parameter->dtype = Extras()[i].dtype;
    parameter->requires_grad = false;
    FSDP_ASSIGN_OR_RETURN(parameter->data, Tensor::Empty(device, parameter->dtype, parameter->shape));
    auto* const bytes = static_cast<uint8_t*>(parameter->data.data());
    for (int64_t b = 0; b < parameter->data.nbytes(); ++b) bytes[b] = static_cast<uint8_t>(b * 89 + i * 31 + seed);
  }
  return absl::OkStatus();
}

struct MixedModel {
  std::shared_ptr<RecordingProcessGroup::Log> log = std::make_shared<RecordingProcessGroup::Log>();
  std::shared_ptr<ProcessGroup> group;
  std::unique_ptr<TestSequence> model = MakeTestBlocks();
  FsdpModule* block = nullptr;
  FsdpModule* root = nullptr;
  Bytes extras;

  // The extras are in the first block and in the root.
  static absl::StatusOr<MixedModel> Make(std::shared_ptr<ProcessGroup> inner, const FullyShardOptions& options,
                                         int replicas = 1, int seed = 0) {
    MixedModel made;
    FSDP_RETURN_IF_ERROR(
        AddExtras(static_cast<TestSequence&>(*made.model->children()[0].second), *inner->device(), seed));
    FSDP_RETURN_IF_ERROR(AddExtras(*made.model, *inner->device(), seed + 7));
    FSDP_RETURN_IF_ERROR(made.Shard(std::move(inner), options, replicas));
    return made;
  }

  // The same model without extras.
  static absl::StatusOr<MixedModel> MakePlain(std::shared_ptr<ProcessGroup> inner, const FullyShardOptions& options,
                                              int replicas = 1) {
    MixedModel made;
    FSDP_RETURN_IF_ERROR(made.Shard(std::move(inner), options, replicas));
    return made;
  }

  absl::Status Shard(std::shared_ptr<ProcessGroup> inner, const FullyShardOptions& options, int replicas) {
    model->AssignNames();
    for (const auto& [name, parameter] : model->NamedParameters()) {
      if (!parameter->requires_grad) extras[name] = BytesOf(parameter->data);
    }
    group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
    std::vector<int> sizes = {group->size() / replicas};
    std::vector<std::string> names = {"shard"};
    if (replicas > 1) {
      sizes.insert(sizes.begin(), replicas);
      names.insert(names.begin(), "replicate");
    }
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> mesh, DeviceMesh::Create(group, sizes, names));
    for (const auto& [name, module] : model->NamedModules()) {
      if (module->type_name() != "Block") continue;
      FSDP_ASSIGN_OR_RETURN(FsdpModule * made, FullyShard(*module, mesh, options));
      if (block == nullptr) block = made;
    }
    FSDP_ASSIGN_OR_RETURN(root, FullyShard(*model, mesh, options));
    return absl::OkStatus();
  }

  // Two steps, and the gradients of the second.
  absl::StatusOr<Gradients> Train() const {
    for (const int step : {0, 1}) {
      FSDP_RETURN_IF_ERROR(ForgetGradients());
      FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
      FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, 3}));
      for (int64_t i = 0; i < x.numel(); ++i) x.data_as<float>()[i] = 0.25f * static_cast<float>(i + step);
      FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
      FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
      FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    }
    Gradients gradients;
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    for (const ShardedParameter* parameter : parameters) {
      if (!parameter->has_grad) continue;
      EXPECT_FALSE(absl::StrContains(parameter->fqn, "extra")) << parameter->fqn;
      const float* const grad = parameter->grad.data_as<float>();
      gradients[parameter->fqn].assign(grad, grad + parameter->grad.numel());
    }
    return gradients;
  }

  absl::Status ForgetGradients() const {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    for (ShardedParameter* parameter : parameters) parameter->has_grad = false;
    return absl::OkStatus();
  }

  // The extras that are bound now, after all work on the streams.
  absl::StatusOr<Bytes> Bound() const {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    Bytes bound;
    for (const auto& [name, parameter] : model->NamedParameters()) {
      if (parameter->requires_grad || !parameter->data.defined()) continue;
      EXPECT_EQ(parameter->data.shape(), parameter->shape);
      bound[name] = BytesOf(parameter->data);
    }
    return bound;
  }
};

// Of the extras, those that a state dict holds whole.
Bytes WholeExtras(const StateDict& state) {
  Bytes whole;
  for (const auto& [key, value] : state.entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    if (!absl::StrContains(key.fqn, "extra") || tensor.shards.empty()) continue;
    const size_t at = std::stoul(key.fqn.substr(key.fqn.find("extra") + 5));
    EXPECT_EQ(tensor.dtype, Extras()[at].dtype) << key.fqn;
    EXPECT_EQ(tensor.shape, Extras()[at].shape) << key.fqn;
    whole[key.fqn] = BytesOf(tensor.shards[0].data);
  }
  return whole;
}

struct Case {
  int ranks, replicas;
  FullyShardOptions options;
};

std::vector<Case> Cases() {
  return {{1, 1, {}},
          {2, 1, {}},
          {3, 1, {}},
          {4, 2, {}},
          {2, 2, {}},
          {3, 1, {.reshard_after_forward = false}},
          {4, 1, {.reshard_after_forward = 2}},
          {3, 1, {.offload_policy = CpuOffloadPolicy{}, .activation_checkpointing = true}}};
}

TEST(FrozenDTypesTest, ParametersOfAnyDTypeAreGatheredAsTheyAreByTheUnitsOneAllGather) {
  for (const Case& one : Cases()) {
    ASSERT_OK(RunRanks(one.ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const MixedModel mixed, MixedModel::Make(group, one.options, one.replicas));
      FSDP_RETURN_IF_ERROR(mixed.Train().status());
      const int gathers = CountEntries(*mixed.log, "all_gather");
      FSDP_RETURN_IF_ERROR(mixed.block->Unshard());
      const bool sharded = one.ranks > one.replicas;
      EXPECT_EQ(CountEntries(*mixed.log, "all_gather") - gathers, sharded ? 1 : 0);
      if (sharded) {
        EXPECT_TRUE(absl::StartsWith(mixed.log->back(), "all_gather world")) << mixed.log->back();
      }
      FSDP_RETURN_IF_ERROR(mixed.root->Unshard());
      EXPECT_THAT(mixed.Bound(), IsOkAndHolds(mixed.extras));
      FSDP_RETURN_IF_ERROR(mixed.block->Reshard());
      FSDP_RETURN_IF_ERROR(mixed.root->Reshard());
      EXPECT_THAT(mixed.Bound(), IsOkAndHolds(Bytes()));
      return absl::OkStatus();
    }));
  }
}

TEST(FrozenDTypesTest, TheTrainedParametersOfAUnitHaveTheGradientsOfAModelWithoutThem) {
  for (const Case& one : Cases()) {
    ASSERT_OK(RunRanks(one.ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const MixedModel mixed, MixedModel::Make(group, one.options, one.replicas));
      FSDP_ASSIGN_OR_RETURN(const Gradients gradients, mixed.Train());
      FSDP_ASSIGN_OR_RETURN(const MixedModel plain, MixedModel::MakePlain(group, one.options, one.replicas));
      FSDP_ASSIGN_OR_RETURN(const Gradients wanted, plain.Train());
      EXPECT_EQ(gradients, wanted);
      EXPECT_EQ(gradients.size(), 8u);
      return absl::OkStatus();
    }));
  }
}

TEST(FrozenDTypesTest, ParamDtypeCastsThoseThatKernelsTakeAsInPyTorch) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const MixedPrecisionPolicy policy{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    FSDP_ASSIGN_OR_RETURN(const MixedModel mixed, MixedModel::Make(group, {.mp_policy = policy}));
    FSDP_RETURN_IF_ERROR(mixed.block->Unshard());
    FSDP_RETURN_IF_ERROR(mixed.root->Unshard());
    FSDP_ASSIGN_OR_RETURN(const Bytes bound, mixed.Bound());
    for (const auto& [name, parameter] : mixed.model->NamedParameters()) {
      if (!parameter->data.defined()) continue;  // of the other block
      const bool is_cast = parameter->dtype == DType::kFloat32 || parameter->dtype == DType::kFloat16;
      EXPECT_EQ(parameter->data.dtype(), is_cast ? DType::kBFloat16 : parameter->dtype) << name;
      if (!is_cast) {
        EXPECT_EQ(bound.at(name), mixed.extras.at(name)) << name;
      }
    }
    return absl::OkStatus();
  }));
}

TEST(FrozenDTypesTest, StatesHaveThemWithTheirDTypesAndLoadThemBack) {
  for (const Case& one : Cases()) {
    ASSERT_OK(RunRanks(one.ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const MixedModel source, MixedModel::Make(group, one.options, one.replicas));
      FSDP_ASSIGN_OR_RETURN(const StateDict full, source.root->GetFullStateDict());
      EXPECT_EQ(WholeExtras(full), source.extras);
      FSDP_ASSIGN_OR_RETURN(const StateDict rows, source.root->GetStateDict());
      // Rows of a model that is only replicated are whole, and not what a SHARDED state has.
      const bool sharded = one.ranks == 1 || one.ranks > one.replicas;
      for (const StateDict* state : {&full, sharded ? &rows : &full}) {
        FSDP_ASSIGN_OR_RETURN(const MixedModel target, MixedModel::Make(group, one.options, one.replicas, /*seed=*/50));
        EXPECT_NE(target.extras, source.extras);
        FSDP_RETURN_IF_ERROR(target.block->Unshard());  // which the load makes stale
        FSDP_RETURN_IF_ERROR(target.root->LoadStateDict(*state).status());
        FSDP_RETURN_IF_ERROR(target.block->Unshard());
        FSDP_RETURN_IF_ERROR(target.root->Unshard());
        EXPECT_THAT(target.Bound(), IsOkAndHolds(source.extras));
        FSDP_ASSIGN_OR_RETURN(const StateDict loaded, target.root->GetFullStateDict());
        EXPECT_EQ(WholeExtras(loaded), source.extras);
      }
      return absl::OkStatus();
    }));
  }
}

TEST(FrozenDTypesTest, ACheckpointHasThemAndIsRestoredOnAnotherNumberOfRanks) {
  const std::string directory = absl::StrCat(testing::TempDir(), "/frozen_dtypes");
  Bytes wanted;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const MixedModel source, MixedModel::Make(group, {}));
    if (group->rank() == 0) wanted = source.extras;
    FSDP_ASSIGN_OR_RETURN(const StateDict state, source.root->GetStateDict());
    return SaveCheckpoint(state, directory, 1, *group, {.overwrite = true}).status();
  }));
  ASSERT_OK_AND_ASSIGN(const std::string path, LatestCheckpoint(directory));
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const MixedModel target, MixedModel::Make(group, {}, 1, /*seed=*/50));
    const auto load = [&](StateDict& state) { return LoadCheckpoint(path, state, *group); };
    FSDP_RETURN_IF_ERROR(target.root->Restore(static_cast<Optimizer*>(nullptr), load).status());
    FSDP_ASSIGN_OR_RETURN(const StateDict loaded, target.root->GetFullStateDict());
    EXPECT_EQ(WholeExtras(loaded), wanted);
    return absl::OkStatus();
  }));
}

TEST(FrozenDTypesTest, SummonedTheyAreWholeAndEditsAreKept) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const MixedModel mixed, MixedModel::Make(group, {}));
    FSDP_RETURN_IF_ERROR(mixed.root->parameters().status());
    Bytes wanted = mixed.extras;
    {
      FSDP_ASSIGN_OR_RETURN(const auto guard, mixed.root->SummonFullParams());
      EXPECT_THAT(mixed.Bound(), IsOkAndHolds(mixed.extras));
      for (const auto& [name, parameter] : mixed.model->NamedParameters()) {
        if (parameter->requires_grad) continue;
        ++static_cast<uint8_t*>(parameter->data.data())[0];
        ++wanted.at(name)[0];
      }
      FSDP_RETURN_IF_ERROR(guard->Close());
    }
    FSDP_ASSIGN_OR_RETURN(const StateDict state, mixed.root->GetFullStateDict());
    EXPECT_EQ(WholeExtras(state), wanted);
    return absl::OkStatus();
  }));
}

TEST(FrozenDTypesTest, AThawedOneOfAnotherDTypeIsAnErrorThatNamesIt) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const MixedModel mixed, MixedModel::Make(group, {}));
    FSDP_RETURN_IF_ERROR(mixed.Train().status());
    for (const std::string extra : {"extra0", "extra1"}) {
      for (const auto& [name, parameter] : mixed.model->NamedParameters()) {
        if (name == extra) parameter->requires_grad = true;
      }
      EXPECT_THAT(mixed.Train().status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr(absl::StrCat("parameter \"", extra, "\" is ")),
                                 HasSubstr("requires_grad was set since then; set it before the model is sharded"))));
      for (const auto& [name, parameter] : mixed.model->NamedParameters()) {
        if (name == extra) parameter->requires_grad = false;
      }
      FSDP_RETURN_IF_ERROR(mixed.Train().status());
    }
    return absl::OkStatus();
  }));
}

TEST(FrozenDTypesTest, TrainedParametersOfTwoDTypesAreRefusedWithBothNames) {
  ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    TestSequence model;
    model.AddLinear(3, 5);
    model.AddUnused("low", {4})->dtype = DType::kBFloat16;
    model.AssignNames();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {1}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
    EXPECT_THAT(root->parameters().status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("parameters that require gradients must have one floating-point dtype"),
                               HasSubstr("\"0.weight\" is float32"), HasSubstr("\"low\" is bfloat16"))));
    return absl::OkStatus();
  }));
}

TEST(FrozenDTypesTest, AUnitThatIsFrozenWholeMayHaveAnyDTypes) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    auto model = MakeTestBlocks();
    TestSequence* const packed = model->AddSequence("Block");
    FSDP_RETURN_IF_ERROR(AddExtras(*packed, *group->device(), 3));
    model->AssignNames();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    const FullyShardOptions options{.mp_policy = {.param_dtype = DType::kBFloat16}};
    FSDP_ASSIGN_OR_RETURN(FsdpModule * block, FullyShard(*packed, mesh, options));
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*model, mesh, options));
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, 3}));
    std::memset(x.data(), 0, x.nbytes());
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
    FSDP_RETURN_IF_ERROR(block->Unshard());
    EXPECT_EQ(packed->own_parameters()[1].second->data.dtype(), DType::kUInt8);
    return tape.stream().Synchronize();
  }));
}

TEST(FrozenDTypesTest, TheyTakePlaceInTheSlotAndNoMemoryForGradients) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const MixedModel mixed, MixedModel::Make(group, {}));
    FSDP_ASSIGN_OR_RETURN(const MixedModel plain, MixedModel::MakePlain(group, {}));
    FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*mixed.root));
    FSDP_ASSIGN_OR_RETURN(const auto without, ShardedModel::Of(*plain.root));
    const MemoryPlan& plan = model->runtime().plan();
    const MemoryPlan& of_plain = without->runtime().plan();
    int64_t nbytes = 0;
    for (const auto& [name, bytes] : mixed.extras) nbytes += static_cast<int64_t>(bytes.size());
    nbytes /= 2;  // one of both modules
    EXPECT_GE(plan.unsharded_slot - of_plain.unsharded_slot, nbytes);
    EXPECT_LE(plan.unsharded_slot - of_plain.unsharded_slot, nbytes + 64 * 10 + 64 * 11);
    EXPECT_EQ(plan.gradient_slot, of_plain.gradient_slot);
    EXPECT_EQ(plan.slots.unsharded, of_plain.slots.unsharded);
    EXPECT_LE(plan.shards - of_plain.shards, nbytes + 32 * 11);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
