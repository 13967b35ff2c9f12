// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/run_optimizers.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/adafactor.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/train/frozen_parameters.h"

namespace fsdp {
namespace {

using Parameters = std::vector<ShardedParameter*>;

// Two groups, as AdamW::DecayMatricesOnly makes them.
template <typename OptimizerType, typename Options, typename... More>
std::unique_ptr<Optimizer> DecayMatricesOnly(const Parameters& parameters, const Options& options, More... more) {
  std::vector<typename OptimizerType::Group> groups = {{{}, options}, {{}, options}};
  groups[1].options.weight_decay = 0;
  for (ShardedParameter* parameter : parameters) {
    groups[parameter->shape.rank() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return std::make_unique<OptimizerType>(std::move(groups), std::move(more)...);
}

std::unique_ptr<Optimizer> MakeOne(const TrainOptions& options, FullyShardedDataParallel& model,
                                   const Parameters& parameters) {
  const AdamWOptions& adamw = options.adamw;
  switch (options.optimizer) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
      return std::make_unique<AdamW>(AdamW::DecayMatricesOnly(parameters, adamw));
    case OptimizerKind::kSgd:
      return DecayMatricesOnly<Sgd>(
          parameters, SgdOptions{.lr = adamw.lr, .momentum = options.momentum, .weight_decay = adamw.weight_decay});
    case OptimizerKind::kLion:
      return DecayMatricesOnly<Lion>(
          parameters,
          LionOptions{.lr = adamw.lr, .beta1 = adamw.beta1, .beta2 = adamw.beta2, .weight_decay = adamw.weight_decay});
    case OptimizerKind::kAdafactor:
      return DecayMatricesOnly<Adafactor>(
          parameters, AdafactorOptions{.lr = adamw.lr, .weight_decay = adamw.weight_decay}, MakeShardExchange(model));
    case OptimizerKind::kMuon:
      break;  // MuonAndAdamW
  }
  return nullptr;
}

// In a block: "transformer.h.3.mlp.c_fc.weight", "model.layers.3.mlp.up_proj.weight".
bool IsHiddenMatrix(const ShardedParameter& parameter) {
  const bool is_in_block = absl::StrContains(parameter.fqn, ".h.") || absl::StrContains(parameter.fqn, ".layers.");
  return is_in_block && parameter.shape.rank() == 2;
}

std::vector<std::unique_ptr<Optimizer>> MuonAndAdamW(const TrainOptions& options, FullyShardedDataParallel& model,
                                                     const Parameters& parameters) {
  Parameters hidden, rest;
  for (ShardedParameter* parameter : parameters) (IsHiddenMatrix(*parameter) ? hidden : rest).push_back(parameter);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  optimizers.push_back(std::make_unique<Muon>(hidden,
                                              MuonOptions{.lr = options.adamw.lr,
                                                          .weight_decay = options.adamw.weight_decay,
                                                          .momentum = options.momentum,
                                                          .adjust_lr_fn = AdjustLr::kMatchRmsAdamw},
                                              MakeShardExchange(model)));
  optimizers.push_back(std::make_unique<AdamW>(AdamW::DecayMatricesOnly(rest, options.adamw)));
  optimizers[0]->set_name("muon");
  optimizers[1]->set_name("adamw");
  return optimizers;
}

// AdamW and SGD have kernels for every device, of float32 parameters.
absl::Status CheckDevice(const TrainOptions& options, const FullyShardedDataParallel& model) {
  const bool everywhere = options.optimizer == OptimizerKind::kAdamW || options.optimizer == OptimizerKind::kSgd;
  const bool on_host = model.device().type() == DeviceType::kCpu || options.fsdp.cpu_offload.offload_params;
  if (on_host) return absl::OkStatus();
  if (options.dtype != DType::kFloat32) {
    const std::string dtype(DTypeName(options.dtype));
    return absl::InvalidArgumentError(
        absl::StrFormat("--dtype=%s: optimizers have kernels for %s parameters on the host, and they are on %s: "
                        "expected --device=cpu, --cpu_offload, or --param_dtype=%s with --dtype=float32",
                        dtype, dtype, model.device().name(), dtype));
  }
  if (everywhere && !options.adamw.amsgrad) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s has kernels for parameters on the host, and they are on %s: expected --device=cpu, --cpu_offload, or "
      "--optimizer=adamw or sgd without --amsgrad",
      everywhere ? "--amsgrad" : absl::StrCat("--optimizer=", std::string(OptimizerKindName(options.optimizer))),
      model.device().name()));
}

// The attribute of the checkpoint if it differs; null otherwise.
const AttributeValue* Differing(const RunMetadata& saved, const std::string& name, const AttributeValue& mine) {
  const auto found = saved.find(name);
  return found == saved.end() || found->second == mine ? nullptr : &found->second;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Optimizer>>> MakeOptimizers(const TrainOptions& options,
                                                                       FullyShardedDataParallel& model) {
  FSDP_RETURN_IF_ERROR(CheckDevice(options, model));
  // Frozen parameters are left out: they have neither gradients nor optimizer state.
  const Parameters trained = TrainableParameters(model.parameters());
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  if (options.optimizer == OptimizerKind::kMuon) {
    optimizers = MuonAndAdamW(options, model, trained);
  } else {
    optimizers.push_back(MakeOne(options, model, trained));
  }
  for (const auto& optimizer : optimizers) {
    if (!options.bf16_stochastic_round) continue;
    FSDP_RETURN_IF_ERROR(optimizer->set_bf16_stochastic_round(options.fsdp.init_seed));
  }
  return optimizers;
}

std::vector<Optimizer*> PointersTo(const std::vector<std::unique_ptr<Optimizer>>& optimizers) {
  std::vector<Optimizer*> pointers;
  for (const auto& optimizer : optimizers) pointers.push_back(optimizer.get());
  return pointers;
}

absl::StatusOr<bool> ContinuesOptimizer(const TrainOptions& options, const RunMetadata& saved,
                                        const std::string& checkpoint) {
  const std::pair<std::string, AttributeValue> mine[] = {
      {"options.optimizer", std::string(OptimizerKindName(options.optimizer))},
      {"options.amsgrad", options.adamw.amsgrad}};
  for (const auto& [name, value] : mine) {
    const AttributeValue* const before = Differing(saved, name, value);
    if (before == nullptr) continue;
    if (options.allow.count(name) != 0) return false;
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint, ": ", name, " was ", ToString(*before), " when it was saved, and is ", ToString(value),
                     " here, which has another state; give the flag the saved value, or pass --allow=", name,
                     " to begin with a new optimizer"));
  }
  return true;
}

}  // namespace fsdp
