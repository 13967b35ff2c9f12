// SPDX-License-Identifier: Apache-2.0
//
// The state is copied to the device once, and again only if a program changes the scaler. Each step's kernel advances
// it there and its bytes are copied back, so the scaler of the host, which checkpoints save, follows one step behind.
#include "fsdp/fsdp/device_grad_scaler.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/gradient_kernels.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/optim/grad_scale.h"
#include "fsdp/optim/update_ops.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

constexpr int64_t kFloats = sizeof(GradScale) / sizeof(float);

// kUnimplemented, naming the first parameter whose gradient will not be in the device's memory or not be a unit's.
absl::Status CheckGradients(FullyShardedDataParallel& model) {
  for (const ShardedParameter* parameter : model.parameters()) {
    if (parameter->device == &model.device()) continue;
    return absl::UnimplementedError(absl::StrCat("grad scaler: parameter \"", parameter->fqn, "\" is on ",
                                                 parameter->device->name(), ", not on ", model.device().name(),
                                                 ", which was to decide: the host has to"));
  }
  for (const auto& [name, parameter] : ShardedModel::Of(model).units().unmanaged()) {
    if (!parameter->requires_grad) continue;
    return absl::UnimplementedError(absl::StrCat("grad scaler: parameter \"", name,
                                                 "\" is ignored by FSDP: the host has to decide which steps count"));
  }
  return absl::OkStatus();
}

// All but what a step derives.
bool SameState(const GradScale& a, const GradScale& b) {
  return a.scale == b.scale && a.growth_factor == b.growth_factor && a.backoff_factor == b.backoff_factor &&
         a.growth_interval == b.growth_interval && a.growth_tracker == b.growth_tracker;
}

// The float32 `offset` bytes into the state.
Tensor ElementAt(const Tensor& state, size_t offset) {
  const auto index = static_cast<int64_t>(offset / sizeof(float));
  return state.Slice({index, index + 1});
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceGradScaler>> DeviceGradScaler::Create(FullyShardedDataParallel& model,
                                                                           ShardedGradScaler& scaler) {
  if (!scaler.options_.enabled) return absl::UnimplementedError("grad scaler: it is not enabled");
  FSDP_RETURN_IF_ERROR(scaler.CheckOptions());
  FSDP_ASSIGN_OR_RETURN(const UpdateOps* ops, UpdateOpsFor(model.device()));
  if (!ops->has_grad_scale()) {
    return absl::UnimplementedError(
        absl::StrCat("grad scaler: ", model.device().name(), " has no kernel for it: the host has to decide"));
  }
  FSDP_RETURN_IF_ERROR(CheckGradients(model));
  std::unique_ptr<DeviceGradScaler> made(new DeviceGradScaler(model, scaler, *ops));
  FSDP_RETURN_IF_ERROR(made->Allocate());
  return made;
}

DeviceGradScaler::DeviceGradScaler(FullyShardedDataParallel& model, ShardedGradScaler& scaler, const UpdateOps& ops)
    : model_(model), scaler_(scaler), ops_(ops), known_(std::make_unique<GradScale>()) {}

DeviceGradScaler::~DeviceGradScaler() = default;

absl::Status DeviceGradScaler::Allocate() {
  Device& device = model_.device();
  FSDP_ASSIGN_OR_RETURN(state_, Tensor::Empty(device, DType::kFloat32, {kFloats}));
  FSDP_ASSIGN_OR_RETURN(uploads_, device.AllocatePinned(sizeof(GradScale)));
  FSDP_ASSIGN_OR_RETURN(results_, device.AllocatePinned(sizeof(GradScale)));
  scale_ = ElementAt(state_, offsetof(GradScale, rounded));
  inverse_ = ElementAt(state_, offsetof(GradScale, inverse));
  return absl::OkStatus();
}

absl::Status DeviceGradScaler::BeginStep() {
  const GradScale wanted = scaler_.state();
  // A step that does not reach EndStep leaves the device with a state that the host does not know.
  if (SameState(wanted, std::exchange(*known_, GradScale()))) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(uploaded_.Synchronize());
  std::memcpy(uploads_.data(), &wanted, sizeof(wanted));
  model_.stream().CopyAsync(state_.data(), uploads_.data(), sizeof(wanted));
  uploaded_ = model_.stream().Record();
  return absl::OkStatus();
}

void DeviceGradScaler::Unscale() {
  std::vector<Tensor> grads;
  for (LocatedGradient& gradient : GradientsOf(model_.parameters())) grads.push_back(std::move(gradient.grad));
  model_.device().ops().ScaleBy(std::move(grads), inverse_, model_.stream());
}

void DeviceGradScaler::Update(const Tensor& found_inf) {
  Stream& stream = model_.stream();
  ops_.UpdateGradScale(state_, found_inf, stream);
  stream.CopyAsync(results_.data(), state_.data(), sizeof(GradScale));
  updated_ = RecordForHost(stream);
}

absl::StatusOr<bool> DeviceGradScaler::EndStep() {
  FSDP_RETURN_IF_ERROR(updated_.Synchronize());
  std::memcpy(known_.get(), results_.data(), sizeof(GradScale));
  scaler_.set_state(*known_);
  return known_->overflowed != 0;
}

}  // namespace fsdp
