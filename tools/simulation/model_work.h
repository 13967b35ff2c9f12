// SPDX-License-Identifier: Apache-2.0
//
// ModelWork: the units of a language model and the work of each in one micro-step, computed only from its config. The
// parameters come from the module that trains (models/causal_lm.h), which is built without memory; the root is unit
// 0, and each block is a unit. Work is counted as follows, for B rows of T tokens:
//
//   matrix products   2 FLOP for each element of a matrix and token, in forward; twice that in backward
//   attention         2 T A FLOP per token for A elements of all heads, causal and fused; 2.5 times that in backward,
//                     which computes the scores again. Unfused: 4 T A, twice that in backward, and traffic of scores
//   everything else   bytes read and written by norms, rotations, activations, residuals and the loss: for each
//                     operation separately ("eager"), or once per group of them ("fused", as torch.compile does)
#ifndef FSDP_TOOLS_SIMULATION_MODEL_WORK_H_
#define FSDP_TOOLS_SIMULATION_MODEL_WORK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/shard_layout.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/tools/simulation/device_model.h"

namespace fsdp {

enum class Checkpointing : uint8_t {
  kNone,
  kSelectiveOp,     // keeps attention and every second matrix product; computes the rest again (torchtitan's "op")
  kSelectiveLayer,  // kFull for every second block
  kFull,            // keeps each block's input
};

// "none", "selective_op", "selective_layer", "full".
absl::StatusOr<Checkpointing> ParseCheckpointing(std::string_view name);
std::string_view CheckpointingName(Checkpointing checkpointing);

enum class KernelStyle : uint8_t { kEager, kFused };
absl::StatusOr<KernelStyle> ParseKernelStyle(std::string_view name);  // "eager", "fused"

struct WorkOptions {
  int64_t batch_size = 1;  // rows per rank and micro-step
  int64_t seq_len = 2048;  // tokens per row
  Checkpointing checkpointing = Checkpointing::kNone;
  KernelStyle kernels = KernelStyle::kFused;
  bool fused_attention = true;
  int64_t loss_chunks = 0;    // of the head and the loss (nn/linear_cross_entropy_loss.h); 0: all logits exist
  int64_t element_bytes = 2;  // of activations
};

struct ModelUnit {
  std::string name;  // as in schedules: "root", "model.layers.0"
  std::vector<ShardLayout::Entry> parameters;

  // For the root: the embedding, then the head and the loss after all blocks.
  UnitWork forward, forward_after_inner;
  UnitWork backward, backward_after_inner;
  UnitWork recompute;  // for a unit whose forward runs again as a whole: Checkpointing::kFull

  int64_t kept_bytes = 0;       // kept from forward to backward
  int64_t transient_bytes = 0;  // in the unit's own backward, in addition to kept_bytes
};

// kInvalidArgument for a batch or sequence that is not positive or that the model does not take, and for configs that
// MakeCausalLm refuses.
absl::StatusOr<std::vector<ModelUnit>> ModelWork(const CausalLmConfig& config, const WorkOptions& options);

// FLOP per token in forward, of matrix products and attention; "model FLOPs" of a step are three times that.
double ForwardFlops(const std::vector<ModelUnit>& units, const WorkOptions& options);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_MODEL_WORK_H_
