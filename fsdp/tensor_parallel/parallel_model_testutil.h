// SPDX-License-Identifier: Apache-2.0
//
// For tests of tensor parallelism: an attention block and an MLP over any mesh {"dp", "tp"}, or in one process without
// either. Names and values of the parameters are the same in all.
#ifndef FSDP_FSDP_TENSOR_PARALLEL_PARALLEL_MODEL_TESTUTIL_H_
#define FSDP_FSDP_TENSOR_PARALLEL_PARALLEL_MODEL_TESTUTIL_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/optim/adamw.h"

namespace fsdp {

enum class TestApi { kFsdp1, kFsdp2 };

// Sequential: LayerNorm, attention of 6 heads, LayerNorm, column-parallel, gelu, row-parallel, plain Linear. Width 6,
// so 1, 2 and 3 ranks of `tp` divide it. Null `tp`: Linear in place of parallel layers.
absl::StatusOr<std::unique_ptr<Module>> MakeParallelModule(const std::shared_ptr<ProcessGroup>& tp);

// [2, 3, 6], different for each step and each rank of data parallelism; and the classes of its 6 rows.
Tensor TestInput(Device& device, int step, int dp_rank);
Tensor TestTargets(Device& device, int step, int dp_rank);

// The loss of `module` on a batch, with its gradients, times `scale`, added.
absl::StatusOr<float> LossOf(Module& module, int step, int dp_rank, Tape& tape, float scale = 1);

// Options that both APIs have under different names.
struct ParallelOptions {
  std::optional<DType> param_dtype = {};  // and of reductions
  bool cpu_offload = false;
};

// The model on one rank of a mesh.
struct ParallelModel {
  std::shared_ptr<const DeviceMesh> mesh;
  std::unique_ptr<FullyShardedDataParallel> model;
  std::unique_ptr<AdamW> optimizer;

  // `sizes`: {dp, tp}, or {replicate, shard, tp}.
  static absl::StatusOr<ParallelModel> Make(std::shared_ptr<ProcessGroup> group, const std::vector<int>& sizes,
                                            TestApi api = TestApi::kFsdp1, bool use_orig_params = false,
                                            const ParallelOptions& parallel = {});

  int dp_rank() const;  // counted over replicas too

  // One step of AdamW; `max_norm`: gradients are clipped. Returns the loss before it.
  absl::StatusOr<float> Train(int step, std::optional<float> max_norm = std::nullopt);

  // The state of model and optimizer.
  absl::StatusOr<StateDict> State(const StateDictSettings& settings);
};

}  // namespace fsdp

#endif  // FSDP_FSDP_TENSOR_PARALLEL_PARALLEL_MODEL_TESTUTIL_H_
