// SPDX-License-Identifier: Apache-2.0
//
// Kernels register themselves by a static initialiser of the library that has them, so optim/ does not depend on CUDA:
// a program that links //optim:cuda_update_ops can update parameters on GPUs, any other gets an error that names the
// library.
#include "fsdp/optim/update_ops.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/host_step.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/kernel_threads.h"

namespace fsdp {
namespace {

// Elements that are worth a thread. An element's result does not depend on the piece that it is in.
constexpr int64_t kGrain = int64_t{1} << 14;

// A GPU's stream may update parameters on the host, with one thread.
int ThreadsOf(const Device& device) { return device.type() == DeviceType::kCpu ? KernelThreads(device) : 1; }

// The extras of the elements from `first` on. Called by work on the stream, because the factor is computed in stream
// order.
UpdateExtras ExtrasOf(const TensorExtras& extras, int64_t first) {
  return {.grad_factor = extras.grad_factor.defined() ? *extras.grad_factor.data_as<const float>() : 1,
          .compute_copy = extras.compute_copy.defined() ? extras.compute_copy.data_as<uint16_t>() + first : nullptr};
}

// Calls update(u, i) for the pieces i of each update u that is not skipped.
template <typename Update, typename F>
absl::Status RunUpdates(const std::vector<Update>& updates, int threads, F update) {
  for (const Update& u : updates) {
    if (Skips(u.extras)) {
      FSDP_RETURN_IF_ERROR(RefreshCopy(u.data, u.extras.compute_copy));
      continue;
    }
    ParallelFor(threads, u.grad.numel(), kGrain, [&](int, Interval i) { update(u, i); });
  }
  return absl::OkStatus();
}

class HostUpdateOps final : public UpdateOps {
 public:
  void AdamW(std::vector<AdamWUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates), threads = ThreadsOf(stream.device())] {
      return RunUpdates(updates, threads, [](const AdamWUpdate& u, Interval i) {
        AdamVariant variant = {.weight_decay = u.weight_decay};
        if (u.max_exp_avg_sq.defined()) variant.max_exp_avg_sq = u.max_exp_avg_sq.data_as<float>() + i.begin;
        UpdateAdamW(u.scalars, u.grad.dtype(), u.grad.Slice(i).data(), i.size(), u.data.data_as<float>() + i.begin,
                    u.exp_avg.data_as<float>() + i.begin, u.exp_avg_sq.data_as<float>() + i.begin,
                    ExtrasOf(u.extras, i.begin), variant);
      });
    });
  }

  void Sgd(std::vector<SgdUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates), threads = ThreadsOf(stream.device())] {
      return RunUpdates(updates, threads, [](const SgdUpdate& u, Interval i) {
        float* const momentum = u.momentum_buffer.defined() ? u.momentum_buffer.data_as<float>() + i.begin : nullptr;
        UpdateSgd(u.scalars, u.grad.dtype(), u.grad.Slice(i).data(), i.size(), u.data.data_as<float>() + i.begin,
                  momentum, ExtrasOf(u.extras, i.begin));
      });
    });
  }

  void Lion(std::vector<LionUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates), threads = ThreadsOf(stream.device())] {
      return RunUpdates(updates, threads, [](const LionUpdate& u, Interval i) {
        UpdateLion(u.scalars, u.grad.dtype(), u.grad.Slice(i).data(), i.size(), u.data.data_as<float>() + i.begin,
                   u.exp_avg.data_as<float>() + i.begin, ExtrasOf(u.extras, i.begin));
      });
    });
  }
};

// Written before main, read after, so it needs no lock.
std::map<DeviceType, const UpdateOps*>& Registered() {
  static auto* const registered = new std::map<DeviceType, const UpdateOps*>{{DeviceType::kCpu, new HostUpdateOps}};
  return *registered;
}

}  // namespace

void UpdateOps::Lion(std::vector<LionUpdate>, Stream& stream) const {
  stream.Run([name = stream.device().name()] {
    return absl::UnimplementedError(absl::StrCat("no kernel of Lion for device ", name));
  });
}

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
