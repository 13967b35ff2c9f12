// SPDX-License-Identifier: Apache-2.0
//
// Tensor parallelism with the other options of training: mixed precision, CPU offload, the gradient scaler.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/tensor_parallel/parallel_model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Each;

constexpr int kSteps = 4;

using Bytes = std::map<std::string, std::string>;

// Whole tensors of model and optimizer.
absl::StatusOr<Bytes> WholeState(ParallelModel& made) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state,
                        made.State({FullStateDictConfig{.offload_to_cpu = true}, FullOptimStateDictConfig()}));
  Bytes bytes;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const Tensor& data = tensor->shards.at(0).data;
    bytes[key.ToString()].assign(data.data_as<const char>(), data.nbytes());
  }
  return bytes;
}

// The mesh's sizes and the API.
class ParallelTrainingTest : public testing::TestWithParam<std::tuple<std::vector<int>, TestApi>> {
 protected:
  absl::Status Run(const std::vector<int>& sizes, const ParallelOptions& options,
                   const std::function<absl::Status(ParallelModel& made)>& rank_main) const {
    int ranks = 1;
    for (const int size : sizes) ranks *= size;
    return RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(ParallelModel made,
                            ParallelModel::Make(group, sizes, api(), /*use_orig_params=*/false, options));
      return rank_main(made);
    });
  }

  // The losses of each step on the first rank of data parallelism, and the wholes at the end.
  std::pair<std::vector<float>, Bytes> Train(const std::vector<int>& sizes, const ParallelOptions& options) const {
    std::pair<std::vector<float>, Bytes> result;
    EXPECT_OK(Run(sizes, options, [&](ParallelModel& made) -> absl::Status {
      std::vector<float> losses;
      for (int step = 0; step < kSteps; ++step) {
        FSDP_ASSIGN_OR_RETURN(losses.emplace_back(), made.Train(step));
      }
      FSDP_ASSIGN_OR_RETURN(const Bytes state, WholeState(made));
      if (made.mesh->all()->rank() == 0) result = {losses, state};
      return absl::OkStatus();
    }));
    return result;
  }

  const std::vector<int>& mesh() const { return std::get<0>(GetParam()); }
  TestApi api() const { return std::get<1>(GetParam()); }
};

// Without tensor parallelism the same model rounds its activations in other places: some ten roundings to 2^-9 of
// values of order one, on the way to a loss of order one.
TEST_P(ParallelTrainingTest, MixedPrecisionHasTheLossesOfOneRankOfTensorParallelism) {
  constexpr float kBound = 10 * 0x1p-9f;
  const ParallelOptions mixed{.param_dtype = DType::kBFloat16};
  std::vector<int> without = mesh();
  without.back() = 1;
  const std::vector<float> wanted = Train(without, mixed).first, got = Train(mesh(), mixed).first;
  const std::vector<float> full = Train(mesh(), {}).first;
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], kBound) << i;
  EXPECT_NE(got, full);
}

// Gradients are summed over tp in bfloat16 before they are reduced, alike on all of its ranks.
TEST_P(ParallelTrainingTest, CopiesStayEqualInEveryBitInMixedPrecision) {
  EXPECT_OK(Run(mesh(), {.param_dtype = DType::kBFloat16}, [&](ParallelModel& made) -> absl::Status {
    for (int step = 0; step < kSteps; ++step) FSDP_RETURN_IF_ERROR(made.Train(step, 0.5f).status());
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> tp, made.mesh->group("tp"));
    for (const ShardedParameter* parameter : made.model->parameters()) {
      EXPECT_EQ(parameter->data.dtype(), DType::kFloat32);
      if (parameter->part) continue;
      const std::string mine(parameter->data.data_as<const char>(), parameter->data.nbytes());
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, tp->AllGatherObject(mine));
      EXPECT_THAT(all, Each(mine)) << parameter->fqn;
    }
    return absl::OkStatus();
  }));
}

TEST_P(ParallelTrainingTest, CpuOffloadTrainsToTheSameBits) {
  const auto wanted = Train(mesh(), {}), got = Train(mesh(), {.cpu_offload = true});
  EXPECT_FALSE(wanted.second.empty());
  EXPECT_EQ(got, wanted);
}

TEST_P(ParallelTrainingTest, ClippingOfOffloadedGradientsSeesTheSameNorm) {
  std::map<bool, float> norms;
  for (const bool offload : {false, true}) {
    EXPECT_OK(Run(mesh(), {.cpu_offload = offload}, [&](ParallelModel& made) -> absl::Status {
      Tape tape = made.model->NewTape();
      FSDP_RETURN_IF_ERROR(LossOf(made.model->module(), 0, made.dp_rank(), tape).status());
      FSDP_ASSIGN_OR_RETURN(const float norm, made.model->ClipGradNorm(1.0f));
      if (made.mesh->all()->rank() == 0) norms[offload] = norm;
      return absl::OkStatus();
    }));
  }
  EXPECT_GT(norms[false], 0);
  EXPECT_NEAR(norms[true], norms[false], 1e-5f * norms[false]);
}

// A power of two scales exactly, so training with a scaler has the bits of training without.
TEST_P(ParallelTrainingTest, AGradScalerOverAllRanksTrainsToTheSameBits) {
  const Bytes wanted = Train(mesh(), {}).second;
  EXPECT_OK(Run(mesh(), {}, [&](ParallelModel& made) -> absl::Status {
    ShardedGradScaler scaler(*made.mesh->all(), {.init_scale = 1024});
    for (int step = 0; step < kSteps; ++step) {
      Tape tape = made.model->NewTape();
      FSDP_RETURN_IF_ERROR(LossOf(made.model->module(), step, made.dp_rank(), tape, scaler.scale()).status());
      FSDP_RETURN_IF_ERROR(scaler.Unscale(*made.optimizer, made.model->stream()));
      FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(*made.optimizer, made.model->stream()));
      EXPECT_TRUE(stepped);
      FSDP_RETURN_IF_ERROR(scaler.Update());
      made.optimizer->ZeroGrad();
    }
    FSDP_ASSIGN_OR_RETURN(const Bytes got, WholeState(made));
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

// An overflow in one rank's part of one matrix, which no rank of its tp or dp group shares, skips the step on all.
TEST_P(ParallelTrainingTest, AnOverflowInOnePartSkipsTheStepOnEveryRankOfTheMesh) {
  EXPECT_OK(Run(mesh(), {}, [&](ParallelModel& made) -> absl::Status {
    ProcessGroup& all = *made.mesh->all();
    FSDP_ASSIGN_OR_RETURN(const Bytes before, WholeState(made));
    ShardedGradScaler scaler(all, {.init_scale = 1024});
    Tape tape = made.model->NewTape();
    FSDP_RETURN_IF_ERROR(LossOf(made.model->module(), 0, made.dp_rank(), tape, scaler.scale()).status());
    for (const ShardedParameter* parameter : made.model->parameters()) {
      if (all.rank() != all.size() - 1 || !parameter->part || parameter->grad.numel() == 0) continue;
      parameter->grad.data_as<float>()[0] = std::numeric_limits<float>::infinity();
      break;
    }
    FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(*made.optimizer, made.model->stream()));
    EXPECT_FALSE(stepped);
    FSDP_RETURN_IF_ERROR(scaler.Update());
    EXPECT_EQ(scaler.scale(), 512);
    made.optimizer->ZeroGrad();
    FSDP_ASSIGN_OR_RETURN(const Bytes after, WholeState(made));
    EXPECT_EQ(after, before);
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Meshes, ParallelTrainingTest,
                         testing::Combine(testing::Values(std::vector<int>{1, 2}, std::vector<int>{2, 2},
                                                          std::vector<int>{1, 2, 3}),
                                          testing::Values(TestApi::kFsdp1, TestApi::kFsdp2)));

}  // namespace
}  // namespace fsdp
