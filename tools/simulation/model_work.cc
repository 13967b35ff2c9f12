// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/model_work.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/module.h"

namespace fsdp {
namespace {

// Backward of a fused attention computes the scores again: 5 products, compared with 2 in forward.
constexpr double kFusedBackward = 2.5;

// The sizes that determine a block's work, for both kinds of model.
struct BlockSizes {
  double hidden, heads, attention, key_value, inner;
  bool gated;  // three matrices in the MLP, rotary positions, RMS norms
  double vocab;
};

BlockSizes SizesOf(const Gpt2Config& config) {
  const double hidden = config.n_embd;
  const double inner = config.n_inner > 0 ? config.n_inner : 4 * hidden;
  return {hidden, static_cast<double>(config.n_head),    hidden, hidden, inner,
          false,  static_cast<double>(config.vocab_size)};
}

BlockSizes SizesOf(const LlamaConfig& config) {
  const double head = config.HeadDim();
  return {static_cast<double>(config.hidden_size),
          static_cast<double>(config.num_attention_heads),
          config.num_attention_heads * head,
          config.KeyValueHeads() * head,
          static_cast<double>(config.intermediate_size),
          true,
          static_cast<double>(config.vocab_size)};
}

// Bytes per token that a block's norms, residuals, rotations and activations move in forward, in elements of 16 bits.
// Fused: two norms (read, write), two residuals (two reads, a write), rotation (read, write), activation (inputs, a
// write). Eager, as PyTorch runs them one by one: an RMS norm casts to float32, squares, averages, scales, casts back
// and multiplies, 34 bytes an element, while a LayerNorm is already one kernel; a rotation goes through float32, 22
// bytes; a gated activation is two kernels; the matrix product adds biases.
double BlockTraffic(const BlockSizes& sizes, KernelStyle kernels) {
  const double rotated = sizes.gated ? sizes.attention + sizes.key_value : 0;
  const bool eager = kernels == KernelStyle::kEager;
  const double norms = 2 * sizes.hidden * (eager && sizes.gated ? 34 : 4);
  const double residuals = 2 * sizes.hidden * 6;
  const double rotation = rotated * (eager ? 22 : 4);
  const double activation = sizes.inner * (sizes.gated ? (eager ? 10 : 6) : 4);
  return norms + residuals + rotation + activation;
}

// Bytes per token for the logits, in float32: cast, log-softmax, and their gradients. Fused: read, write and the
// gradient.
double LossTraffic(const BlockSizes& sizes, KernelStyle kernels) {
  return sizes.vocab * (kernels == KernelStyle::kEager ? 14 : 8);
}

// Scores of an attention that is not fused: written by the product, masked, exponentiated, and read by the next
// product.
double ScoreTraffic(const BlockSizes& sizes, const WorkOptions& options) {
  return options.fused_attention ? 0 : sizes.heads * options.seq_len * 12;
}

double AttentionFlops(const BlockSizes& sizes, const WorkOptions& options) {
  return (options.fused_attention ? 2 : 4) * sizes.attention * options.seq_len;
}

double MatrixElements(const std::vector<ShardLayout::Entry>& parameters) {
  double elements = 0;
  for (const ShardLayout::Entry& parameter : parameters) {
    if (parameter.shape.dims().size() >= 2) elements += parameter.shape.numel();
  }
  return elements;
}

// Every second matrix in the order of forward: query, key, value, output, then the MLP's. A GPT-2 block multiplies by
// query, key and value in one product.
double SecondMatrices(const BlockSizes& sizes) {
  if (sizes.gated) return sizes.hidden * (sizes.key_value + sizes.attention + sizes.inner);
  return sizes.attention * sizes.hidden + sizes.hidden * sizes.inner;
}

// Elements per token that a block keeps if nothing is computed again: inputs and outputs of the norms, query, key,
// value, the output of attention, and the inner parts of the MLP.
double KeptElements(const BlockSizes& sizes) {
  return 4 * sizes.hidden + 2 * sizes.attention + 2 * sizes.key_value + (sizes.gated ? 3 : 2) * sizes.inner;
}

double SelectivelyKeptElements(const BlockSizes& sizes) {
  const double query_and_value = sizes.attention + sizes.key_value;
  return 2 * sizes.hidden + query_and_value + sizes.attention + (sizes.gated ? sizes.inner : 0);
}

// The checkpointing of block `index`, from 0.
Checkpointing OfBlock(Checkpointing checkpointing, int index) {
  if (checkpointing != Checkpointing::kSelectiveLayer) return checkpointing;
  return index % 2 == 1 ? Checkpointing::kFull : Checkpointing::kNone;
}

// Estimates beyond int64 become its largest number; CheckActivations refuses them.
int64_t Bytes(double estimate) {
  constexpr double kMost = 9.2e18;
  return static_cast<int64_t>(std::min(estimate, kMost));
}

void AddBlockWork(const BlockSizes& sizes, const WorkOptions& options, int index, ModelUnit& unit) {
  const double tokens = static_cast<double>(options.batch_size) * options.seq_len;
  // The counts above are for elements of 16 bits.
  const double traffic = BlockTraffic(sizes, options.kernels) * options.element_bytes / 2;
  const double scores = ScoreTraffic(sizes, options) * options.element_bytes / 2;
  const UnitWork forward = {2 * MatrixElements(unit.parameters), AttentionFlops(sizes, options), traffic + scores};
  const double attention_backward = options.fused_attention ? kFusedBackward : 2;
  UnitWork backward = {2 * forward.matmul_flops, attention_backward * forward.attention_flops,
                       2 * forward.traffic_bytes};
  const double input = sizes.hidden, all = KeptElements(sizes);
  const double unfused_scores = options.fused_attention ? 0 : 2 * sizes.heads * options.seq_len;
  double kept = all + unfused_scores, transient = 0;
  switch (OfBlock(options.checkpointing, index)) {
    case Checkpointing::kNone:
    case Checkpointing::kSelectiveLayer:
      break;
    case Checkpointing::kSelectiveOp:
      // torchtitan's "op" keeps the output of attention, so attention itself is not computed again.
      backward = backward + UnitWork{2 * SecondMatrices(sizes), 0, traffic};
      // Its backward has everything again, but only for one block at a time.
      transient = kept;
      kept = SelectivelyKeptElements(sizes);
      break;
    case Checkpointing::kFull:
      unit.recompute = forward * tokens;
      transient = kept;
      kept = input;
      break;
  }
  unit.forward = forward * tokens;
  unit.backward = backward * tokens;
  unit.kept_bytes = Bytes(kept * tokens * options.element_bytes);
  unit.transient_bytes = Bytes(transient * tokens * options.element_bytes);
}

void AddRootWork(const BlockSizes& sizes, const WorkOptions& options, ModelUnit& root) {
  const double tokens = static_cast<double>(options.batch_size) * options.seq_len;
  const double element = options.element_bytes;
  const double embedding = 2 * sizes.hidden * element;
  const double head = 2 * sizes.hidden * sizes.vocab;
  root.forward = UnitWork{0, 0, embedding} * tokens;
  root.forward_after_inner = UnitWork{head, 0, LossTraffic(sizes, options.kernels)} * tokens;
  root.backward = UnitWork{2 * head, 0, LossTraffic(sizes, options.kernels)} * tokens;
  root.backward_after_inner = UnitWork{0, 0, 2 * embedding} * tokens;
  // Logits of a chunk, and in float32 the logarithms of their softmax and their gradients. With chunks also the head's
  // gradient in float32, which each chunk adds to.
  const double chunks = std::max<double>(1, static_cast<double>(options.loss_chunks));
  const double logits = std::ceil(tokens / chunks) * sizes.vocab;
  const double summed = options.loss_chunks > 0 ? 4 * sizes.hidden * sizes.vocab : 0;
  root.backward.traffic_bytes += 2 * summed * chunks;
  root.kept_bytes = Bytes(tokens * 2 * sizes.hidden * element + logits * element + logits * 4);
  root.transient_bytes = Bytes(logits * 4 + summed);
}

absl::Status CheckSizes(const CausalLmConfig& config, const WorkOptions& options) {
  if (options.batch_size < 1 || options.seq_len < 1) {
    return absl::InvalidArgumentError(absl::StrCat("batch_size is ", options.batch_size, " and seq_len ",
                                                   options.seq_len, ", wanted both to be at least 1"));
  }
  if (options.loss_chunks < 0) {
    return absl::InvalidArgumentError(absl::StrCat("loss_chunks is ", options.loss_chunks, ", wanted at least 0"));
  }
  const std::optional<SequenceLimit> limit = SequenceLimitOf(config);
  if (!limit.has_value() || options.seq_len <= limit->seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("seq_len is ", options.seq_len, ", wanted at most ", limit->seq_len,
                                                 ", the model's ", std::string(limit->field)));
}

// Callers add up the bytes of all units in int64.
absl::Status CheckActivations(const std::vector<ModelUnit>& units, const WorkOptions& options) {
  constexpr double kMostBytes = 1e18;
  double nbytes = 0;
  for (const ModelUnit& unit : units) {
    nbytes += static_cast<double>(unit.kept_bytes) + static_cast<double>(unit.transient_bytes);
  }
  if (nbytes <= kMostBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batch_size is ", options.batch_size, " and seq_len ", options.seq_len,
                                                 ", wanted activations of at most ", kMostBytes, " bytes"));
}

}  // namespace

absl::StatusOr<Checkpointing> ParseCheckpointing(std::string_view name) {
  if (name == "none") return Checkpointing::kNone;
  if (name == "selective_op") return Checkpointing::kSelectiveOp;
  if (name == "selective_layer") return Checkpointing::kSelectiveLayer;
  if (name == "full") return Checkpointing::kFull;
  return absl::InvalidArgumentError(absl::StrCat("activation checkpointing \"", std::string(name),
                                                 "\": expected none, selective_op, selective_layer or full"));
}

std::string_view CheckpointingName(Checkpointing checkpointing) {
  switch (checkpointing) {
    case Checkpointing::kNone:
      return "none";
    case Checkpointing::kSelectiveOp:
      return "selective_op";
    case Checkpointing::kSelectiveLayer:
      return "selective_layer";
    case Checkpointing::kFull:
      return "full";
  }
  return "";
}

absl::StatusOr<KernelStyle> ParseKernelStyle(std::string_view name) {
  if (name == "eager") return KernelStyle::kEager;
  if (name == "fused") return KernelStyle::kFused;
  return absl::InvalidArgumentError(absl::StrCat("kernels \"", std::string(name), "\": expected eager or fused"));
}

absl::StatusOr<std::vector<ModelUnit>> ModelWork(const CausalLmConfig& config, const WorkOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckSizes(config, options));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, MakeCausalLm(config));
  std::vector<ModelUnit> units(1);
  units[0].name = "root";
  std::set<const Parameter*> placed;
  const auto place = [&placed](Module& module, const std::string& prefix, ModelUnit& unit) {
    for (const auto& [name, parameter] : module.NamedParameters()) {
      if (placed.insert(parameter.get()).second) unit.parameters.push_back({prefix + name, parameter->shape, 0});
    }
  };
  const BlockSizes sizes = std::visit([](const auto& kind) { return SizesOf(kind); }, config);
  for (const auto& [name, module] : model->NamedModules()) {
    if (!IsTransformerBlock(*module)) continue;
    ModelUnit& unit = units.emplace_back();
    unit.name = name;
    // A parameter with two names belongs to the block that has it first.
    place(*module, name + ".", unit);
    AddBlockWork(sizes, options, static_cast<int>(units.size()) - 2, unit);
  }
  // Parameters that no block has are the root's.
  place(*model, "", units[0]);
  AddRootWork(sizes, options, units[0]);
  FSDP_RETURN_IF_ERROR(CheckActivations(units, options));
  return units;
}

double ForwardFlops(const std::vector<ModelUnit>& units, const WorkOptions& options) {
  double flops = 0;
  for (const ModelUnit& unit : units) {
    const UnitWork work = unit.forward + unit.forward_after_inner;
    flops += work.matmul_flops + work.attention_flops;
  }
  return flops / (static_cast<double>(options.batch_size) * options.seq_len);
}

}  // namespace fsdp
