// SPDX-License-Identifier: Apache-2.0
//
// Every device that has a gradient is a Place: a stream there and one float32, which is the factor to scale by or the
// mark of a value that was found. A place other than the caller's begins after the work that is on the caller's stream,
// because that work copies offloaded gradients to the host.
#include "fsdp/fsdp/gradient_kernels.h"

#include <map>
#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

class Places {
 public:
  struct Place {
    std::unique_ptr<Stream> own;  // null at the caller's place
    Stream* stream = nullptr;
    Tensor scalar;  // one float32 on the device
    std::vector<Tensor> gradients;
  };

  explicit Places(Stream& stream) : caller_(stream) {}

  // The place on `device`; a new one has 0 as its scalar.
  absl::StatusOr<Place*> On(Device& device) {
    Place& place = places_[&device];
    if (place.stream != nullptr) return &place;
    if (&device != &caller_.device()) {
      FSDP_ASSIGN_OR_RETURN(place.own, device.CreateStream("gradients"));
      place.own->Wait(caller_.Record());
    }
    FSDP_ASSIGN_OR_RETURN(place.scalar, Tensor::Empty(device, DType::kFloat32, {1}));
    place.stream = place.own != nullptr ? place.own.get() : &caller_;
    device.ops().Zero(place.scalar, *place.stream);
    return &place;
  }

  // Adds each gradient to the place on its device.
  absl::Status Add(absl::Span<const LocatedGradient> gradients) {
    for (const LocatedGradient& gradient : gradients) {
      FSDP_ASSIGN_OR_RETURN(Place * place, On(*gradient.device));
      place->gradients.push_back(gradient.grad);
    }
    return absl::OkStatus();
  }

  const std::map<Device*, Place>& all() const { return places_; }

  absl::Status Synchronize() const {
    absl::Status first = caller_.Synchronize();
    for (const auto& [device, place] : places_) first.Update(place.stream->Synchronize());
    return first;
  }

 private:
  Stream& caller_;
  std::map<Device*, Place> places_;
};

}  // namespace

std::vector<LocatedGradient> GradientsOf(absl::Span<ShardedParameter* const> parameters) {
  std::vector<LocatedGradient> gradients;
  for (const ShardedParameter* p : parameters) {
    if (p->has_grad && !p->interval.empty()) gradients.push_back({p->grad, p->device});
  }
  return gradients;
}

absl::Status ScaleGradients(absl::Span<const LocatedGradient> gradients, float factor, Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(const Buffer host_factor, stream.device().AllocatePinned(sizeof(factor)));
  *reinterpret_cast<float*>(host_factor.data()) = factor;
  Places places(stream);
  FSDP_RETURN_IF_ERROR(places.Add(gradients));
  for (const auto& [device, place] : places.all()) {
    // A host device's stream copies from pinned memory as well.
    place.stream->CopyAsync(place.scalar.data(), host_factor.data(), sizeof(factor));
    device->ops().ScaleBy(place.gradients, place.scalar, *place.stream);
  }
  return places.Synchronize();  // host_factor and the gradients may go
}

absl::StatusOr<Tensor> FindNotFinite(absl::Span<const LocatedGradient> gradients, Stream& stream) {
  Device& here = stream.device();
  Places places(stream);
  FSDP_ASSIGN_OR_RETURN(const Places::Place* found, places.On(here));
  const Tensor result = found->scalar;
  FSDP_RETURN_IF_ERROR(places.Add(gradients));
  for (const auto& [device, place] : places.all()) {
    device->ops().CheckFinite(place.gradients, place.scalar, *place.stream);
  }
  // Only this stream was used, so its order is enough: no wait.
  if (places.all().size() == 1) return result;
  FSDP_ASSIGN_OR_RETURN(const Tensor copy, Tensor::Empty(here, DType::kFloat32, {1}));
  for (const auto& [device, place] : places.all()) {
    if (device == &here) continue;
    stream.Wait(place.own->Record());
    // `copy` serves all places in turn: their copies and sums are in the order of `stream`.
    stream.CopyAsync(copy.data(), place.scalar.data(), sizeof(float));
    here.ops().Accumulate(copy, result, stream);
  }
  FSDP_RETURN_IF_ERROR(places.Synchronize());  // the other places' scalars may go
  return result;
}

}  // namespace fsdp
