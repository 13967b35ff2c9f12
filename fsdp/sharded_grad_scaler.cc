// SPDX-License-Identifier: Apache-2.0
//
// Two ways to the same result. Unscale multiplies the gradients by 1 / scale and then looks for values that are not
// finite; it is for programs that clip in between. Without such a call Step saves the pass over all gradients: it
// checks the scaled ones and hands 1 / scale to the optimizer, which multiplies while it reads them. The check gives
// the same answer before and after, because a finite number times a factor of at most 1 is finite; below a scale of 1
// this does not hold (CanFold).
//
// Each rank checks only its shards. The counts are summed over all ranks, so either all of them step or no rank does: a
// rank that skipped a step that others took would have different weights from then on.
#include "fsdp/fsdp/sharded_grad_scaler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/option_check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/gradient_kernels.h"
#include "fsdp/optim/grad_scale.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

constexpr char kStateName[] = "grad_scaler";

// The values that AddStateDict wrote, with the scale as init_scale.
struct SavedState {
  GradScalerOptions options;
  int growth_tracker = 0;
};

absl::Status ReadNumber(const nlohmann::json& values, const char* name, double& number) {
  const auto found = values.find(name);
  if (found == values.end() || !found->is_number()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a number \"", name, "\" in ", values.dump()));
  }
  number = found->get<double>();
  return absl::OkStatus();
}

absl::StatusOr<SavedState> ParseState(const std::string& text) {
  const std::string place = absl::StrCat("grad scaler: ", StateKey::Extra(kStateName).ToString());
  const nlohmann::json values = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(place, " is \"", text, "\": expected a JSON object"));
  }
  SavedState saved;
  double interval = 0, tracker = 0;
  const std::pair<const char*, double*> numbers[] = {{"scale", &saved.options.init_scale},
                                                     {"growth_factor", &saved.options.growth_factor},
                                                     {"backoff_factor", &saved.options.backoff_factor},
                                                     {"growth_interval", &interval},
                                                     {"_growth_tracker", &tracker}};
  for (const auto& [name, number] : numbers) {
    FSDP_RETURN_IF_ERROR(Annotate(ReadNumber(values, name, *number), place));
  }
  // Compared before they are converted, because a double may not fit an int.
  if (!(interval <= std::numeric_limits<int>::max()) || !(tracker >= 0 && tracker < interval)) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": _growth_tracker is ", tracker, " of growth_interval ",
                                                   interval, ": expected at least 0 and below it"));
  }
  saved.options.growth_interval = static_cast<int>(interval);
  saved.growth_tracker = static_cast<int>(tracker);
  FSDP_RETURN_IF_ERROR(Annotate(CheckPositive("scale", saved.options.init_scale), place));
  FSDP_RETURN_IF_ERROR(Annotate(Validate(saved.options), place));
  return saved;
}

}  // namespace

absl::Status Validate(const GradScalerOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckPositive("init_scale", options.init_scale));
  FSDP_RETURN_IF_ERROR(CheckAbove1("growth_factor", options.growth_factor));
  FSDP_RETURN_IF_ERROR(CheckProperShare("backoff_factor", options.backoff_factor));
  return CheckAtLeast1("growth_interval", options.growth_interval);
}

absl::Status ShardedGradScaler::CheckOptions() const { return Annotate(Validate(options_), "grad scaler"); }

ShardedGradScaler::ShardedGradScaler(ProcessGroup& group, const GradScalerOptions& options)
    : group_(group), options_(options), scale_(options.init_scale) {}

absl::StatusOr<bool> ShardedGradScaler::AnyOverflow(Optimizer& optimizer, Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(const Buffer host, stream.device().AllocatePinned(sizeof(float)));
  FSDP_ASSIGN_OR_RETURN(const Tensor found_inf, FindNotFinite(GradientsOf(optimizer.parameters()), stream));
  group_.AllReduce(found_inf, ReduceOp::kSum, stream);
  stream.CopyAsync(host.data(), found_inf.data(), sizeof(float));
  // The host must know the answer before it issues the update.
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return *reinterpret_cast<const float*>(host.data()) != 0;
}

absl::StatusOr<Tensor> ShardedGradScaler::InverseScale(Stream& stream) const {
  Device& device = stream.device();
  FSDP_ASSIGN_OR_RETURN(const Tensor factor, Tensor::Empty(device, DType::kFloat32, {1}));
  FSDP_ASSIGN_OR_RETURN(const Buffer host, device.AllocatePinned(sizeof(float)));
  *reinterpret_cast<float*>(host.data()) = static_cast<float>(1.0 / scale_);
  stream.CopyAsync(factor.data(), host.data(), sizeof(float));
  FSDP_RETURN_IF_ERROR(stream.Synchronize());  // so `host` may go
  return factor;
}

absl::Status ShardedGradScaler::Unscale(Optimizer& optimizer, Stream& stream) {
  if (!options_.enabled) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(CheckOptions());
  Progress& progress = progress_[&optimizer];
  // Each optimizer is unscaled at most once between updates, or its gradients would be divided twice.
  if (progress.stepped) return absl::FailedPreconditionError("grad scaler: Unscale after Step; call Update first");
  if (progress.unscaled) {
    return absl::FailedPreconditionError("grad scaler: Unscale has been called since the last Update");
  }
  const auto factor = static_cast<float>(1.0 / scale_);
  FSDP_RETURN_IF_ERROR(ScaleGradients(GradientsOf(optimizer.parameters()), factor, stream));
  FSDP_ASSIGN_OR_RETURN(progress.overflowed, AnyOverflow(optimizer, stream));
  progress.unscaled = true;
  return absl::OkStatus();
}

// True if the optimizer can apply 1 / scale: the factor is at most 1, the program has not set a factor, and all
// gradients are on the device that has the factor.
bool ShardedGradScaler::CanFold(const Optimizer& optimizer, const Stream& stream) const {
  if (scale_ < 1 || optimizer.has_grad_factor()) return false;
  const auto& parameters = optimizer.parameters();
  return std::all_of(parameters.begin(), parameters.end(),
                     [&](const ShardedParameter* p) { return p->device == &stream.device(); });
}

absl::StatusOr<bool> ShardedGradScaler::Step(Optimizer& optimizer, Stream& stream) {
  if (!options_.enabled) {
    FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
    return true;
  }
  FSDP_RETURN_IF_ERROR(CheckOptions());
  Progress& progress = progress_[&optimizer];
  if (progress.stepped) {
    return absl::FailedPreconditionError("grad scaler: Step has been called since the last Update");
  }
  if (!progress.unscaled && CanFold(optimizer, stream)) {
    FSDP_ASSIGN_OR_RETURN(progress.overflowed, AnyOverflow(optimizer, stream));
    progress.unscaled = true;
    // Not set after an overflow: the step is skipped, and the next one has another scale.
    if (!progress.overflowed) {
      FSDP_ASSIGN_OR_RETURN(Tensor factor, InverseScale(stream));
      optimizer.set_grad_factor(std::move(factor));
    }
  } else if (!progress.unscaled) {
    FSDP_RETURN_IF_ERROR(Unscale(optimizer, stream));
  }
  progress.stepped = true;
  if (progress.overflowed) return false;
  FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
  return true;
}

GradScale ShardedGradScaler::state() const {
  GradScale state = {.scale = scale_,
                     .growth_factor = options_.growth_factor,
                     .backoff_factor = options_.backoff_factor,
                     .growth_interval = options_.growth_interval,
                     .growth_tracker = steps_without_overflow_};
  state.Derive();
  return state;
}

void ShardedGradScaler::set_state(const GradScale& state) {
  scale_ = state.scale;
  steps_without_overflow_ = state.growth_tracker;
}

absl::Status ShardedGradScaler::Update(std::optional<double> new_scale) {
  if (!options_.enabled) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(CheckOptions());
  if (new_scale.has_value()) {
    FSDP_RETURN_IF_ERROR(Annotate(CheckPositive("new_scale", *new_scale), "grad scaler"));
    scale_ = *new_scale;
    progress_.clear();
    return absl::OkStatus();
  }
  // An overflow of any optimizer backs the scale off for all of them, as in PyTorch.
  bool unscaled = false, overflowed = false;
  for (const auto& [optimizer, progress] : progress_) {
    unscaled |= progress.unscaled;
    overflowed |= progress.overflowed;
  }
  if (!unscaled) return absl::FailedPreconditionError("grad scaler: Update with nothing unscaled since the last one");
  progress_.clear();
  GradScale advanced = state();
  advanced.Advance(overflowed);
  set_state(advanced);
  return absl::OkStatus();
}

void ShardedGradScaler::AddStateDict(StateDict& state) const {
  if (!options_.enabled) return;
  const nlohmann::ordered_json values = {{"scale", scale_},
                                         {"growth_factor", options_.growth_factor},
                                         {"backoff_factor", options_.backoff_factor},
                                         {"growth_interval", options_.growth_interval},
                                         {"_growth_tracker", steps_without_overflow_}};
  state.Set(StateKey::Extra(kStateName), values.dump());
}

absl::Status ShardedGradScaler::LoadStateDict(const StateDict& state) {
  if (!options_.enabled) return absl::OkStatus();
  const std::string* text = state.FindText(StateKey::Extra(kStateName));
  if (text == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("grad scaler: the state dict has no text ",
                                                   StateKey::Extra(kStateName).ToString(),
                                                   ": expected the state of a scaler that was enabled"));
  }
  // Parsed and checked as a whole first, so that an error changes nothing.
  FSDP_ASSIGN_OR_RETURN(const SavedState saved, ParseState(*text));
  options_ = saved.options;
  scale_ = saved.options.init_scale;
  steps_without_overflow_ = saved.growth_tracker;
  progress_.clear();
  return absl::OkStatus();
}

}  // namespace fsdp
