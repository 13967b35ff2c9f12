// SPDX-License-Identifier: Apache-2.0
//
// Kernels register themselves by a static initialiser of the library that has them, so optim/ does not depend on CUDA:
// a program that links //optim:cuda_update_ops can update parameters on GPUs, any other gets an error that names the
// library.
#include "fsdp/optim/update_ops.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
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

// Random numbers are drawn for so many elements at a time, so that they stay in a cache.
constexpr int64_t kRandomBlock = 1024;

// The extras of elements `piece`. Called by work on the stream, because the factor is computed in stream order.
UpdateExtras ExtrasOf(const TensorExtras& extras, Interval piece) {
  return {
      .grad_factor = extras.grad_factor.defined() ? *extras.grad_factor.data_as<const float>() : 1,
      .compute_copy = extras.compute_copy.defined() ? extras.compute_copy.data_as<uint16_t>() + piece.begin : nullptr};
}

// Elements `piece` of a parameter's update.
template <typename Update>
UpdateSlice SliceOf(const Update& u, Interval piece) {
  return {piece.size(), u.grad.dtype(), u.grad.Slice(piece).data(), u.data.dtype(), u.data.Slice(piece).data()};
}

// The address of the first element of `piece`; null of a state that there is not.
void* AddressOf(const Tensor& state, Interval piece) { return state.defined() ? state.Slice(piece).data() : nullptr; }

// Calls update(piece, extras) for all elements of `all`: at once, or block by block with random numbers.
template <typename F>
void RunPiece(const TensorExtras& extras, Interval all, F update) {
  if (!extras.rounding) return update(all, ExtrasOf(extras, all));
  std::vector<uint32_t> numbers;
  for (int64_t begin = all.begin; begin < all.end; begin += kRandomBlock) {
    const Interval block{begin, std::min(all.end, begin + kRandomBlock)};
    UpdateExtras with = ExtrasOf(extras, block);
    numbers.resize(with.random.size() * block.size());
    for (size_t t = 0; t < with.random.size(); ++t) {
      const absl::Span<uint32_t> some(numbers.data() + t * block.size(), block.size());
      extras.rounding->Fill(static_cast<int>(t), begin, some);
      with.random[t] = some.data();
    }
    update(block, with);
  }
}

// Calls update(u, piece, extras) for the pieces of each update u that is not skipped.
template <typename Update, typename F>
absl::Status RunUpdates(const std::vector<Update>& updates, int threads, F update) {
  for (const Update& u : updates) {
    if (Skips(u.extras)) {
      FSDP_RETURN_IF_ERROR(RefreshCopy(u.data, u.extras.compute_copy));
      continue;
    }
    ParallelFor(threads, u.grad.numel(), kGrain, [&](int, Interval i) {
      RunPiece(u.extras, i, [&](Interval piece, const UpdateExtras& extras) { update(u, piece, extras); });
    });
  }
  return absl::OkStatus();
}

class HostUpdateOps final : public UpdateOps {
 public:
  void AdamW(std::vector<AdamWUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates), threads = ThreadsOf(stream.device())] {
      return RunUpdates(updates, threads, [](const AdamWUpdate& u, Interval i, const UpdateExtras& extras) {
        UpdateAdamW(u.scalars, SliceOf(u, i), AddressOf(u.exp_avg, i), AddressOf(u.exp_avg_sq, i), extras,
                    {.weight_decay = u.weight_decay, .max_exp_avg_sq = AddressOf(u.max_exp_avg_sq, i)});
      });
    });
  }

  void Sgd(std::vector<SgdUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates), threads = ThreadsOf(stream.device())] {
      return RunUpdates(updates, threads, [](const SgdUpdate& u, Interval i, const UpdateExtras& extras) {
        UpdateSgd(u.scalars, SliceOf(u, i), AddressOf(u.momentum_buffer, i), extras);
      });
    });
  }

  void Lion(std::vector<LionUpdate> updates, Stream& stream) const override {
    stream.Run([updates = std::move(updates), threads = ThreadsOf(stream.device())] {
      return RunUpdates(updates, threads, [](const LionUpdate& u, Interval i, const UpdateExtras& extras) {
        UpdateLion(u.scalars, SliceOf(u, i), AddressOf(u.exp_avg, i), extras);
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

void UpdateOps::UpdateGradScale(const Tensor&, const Tensor&, Stream& stream) const {
  stream.Run([name = stream.device().name()] {
    return absl::UnimplementedError(absl::StrCat("no kernel of a gradient scaler for device ", name));
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
