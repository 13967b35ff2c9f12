// SPDX-License-Identifier: Apache-2.0
//
// Kernels register themselves by a static initialiser of the library that has them, so optim/ does not depend on CUDA:
// a program that links //optim:cuda_update_ops can update parameters on GPUs, another gets an error that says so.
#include "fsdp/optim/update_ops.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// Called by work on the stream, since the factor is computed in stream order.
UpdateExtras ExtrasOf(const TensorExtras& extras) {
  return {.grad_factor = extras.grad_factor.defined() ? *extras.grad_factor.data_as<const float>() : 1,
          .compute_copy = extras.compute_copy.defined() ? extras.compute_copy.data_as<uint16_t>() : nullptr};
}

class HostUpdateOps final : public UpdateOps {
 public:
  void AdamW(std::vector<AdamWUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates)] {
      for (const AdamWUpdate& u : updates) {
        UpdateAdamW(u.scalars, u.grad.dtype(), u.grad.data(), u.grad.numel(), u.data.data_as<float>(),
                    u.exp_avg.data_as<float>(), u.exp_avg_sq.data_as<float>(), ExtrasOf(u.extras));
      }
      return absl::OkStatus();
    });
  }

  void Sgd(std::vector<SgdUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates)] {
      for (const SgdUpdate& u : updates) {
        UpdateSgd(u.scalars, u.grad.dtype(), u.grad.data(), u.grad.numel(), u.data.data_as<float>(),
                  u.momentum_buffer.data_as<float>(), ExtrasOf(u.extras));
      }
      return absl::OkStatus();
    });
  }
};

// Written before main, read after, so it needs no lock.
std::map<DeviceType, const UpdateOps*>& Registered() {
  static auto* const registered = new std::map<DeviceType, const UpdateOps*>{{DeviceType::kCpu, new HostUpdateOps}};
  return *registered;
}

}  // namespace

absl::StatusOr<const UpdateOps*> UpdateOpsFor(const Device& device) {
  const auto registered = Registered().find(device.type());
  if (registered != Registered().end()) return registered->second;
  return absl::UnimplementedError(absl::StrCat("no optimizer kernels for device ", device.name(),
                                               ": the program was linked without //optim:cuda_kernels"));
}

bool RegisterUpdateOps(DeviceType type, const UpdateOps* ops) {
  Registered()[type] = ops;
  return true;
}

}  // namespace fsdp
