// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/benchmark/kernel_runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/check.h"
#include "fsdp/base/random.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// Tensors are filled with slices of one table of random numbers, whose length is not a divisor of any row's.
constexpr int64_t kNumbers = (1 << 22) + 1;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Spread(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return (*most - *least) / Median(values);
}

void Print(const KernelCase& kernel, const std::vector<double>& seconds, const std::string& more) {
  const double median = Median(seconds);
  const double rate =
      kernel.flops > 0 ? kernel.flops / median / 1e12 : static_cast<double>(kernel.bytes) / median / 1e9;
  absl::PrintF(
      "{\"kernel\": \"%s\", \"shape\": \"%s\", \"dtype\": \"%s\", \"microseconds\": %.2f, \"spread\": %.3f, "
      "\"%s\": %.1f%s}\n",
      kernel.name, kernel.shape, DTypeName(kernel.dtype), median * 1e6, Spread(seconds),
      kernel.flops > 0 ? "tflop_per_s" : "gb_per_s", rate, more);
  std::fflush(stdout);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelRunner>> KernelRunner::Create(std::shared_ptr<Device> device,
                                                                   const KernelRunnerOptions& options) {
  std::unique_ptr<KernelRunner> runner(new KernelRunner(std::move(device), options));
  FSDP_ASSIGN_OR_RETURN(runner->timer_, GpuTimer::Create(*runner->stream_));
  std::vector<float> numbers(kNumbers);
  FillNormal(Philox(/*seed=*/1), 0, absl::MakeSpan(numbers));
  FSDP_ASSIGN_OR_RETURN(runner->numbers_, Tensor::Empty(*runner->device_, DType::kFloat32, {kNumbers}));
  runner->stream_->CopyAsync(runner->numbers_.data(), numbers.data(), runner->numbers_.nbytes());
  FSDP_RETURN_IF_ERROR(runner->stream_->Synchronize());
  return runner;
}

KernelRunner::KernelRunner(std::shared_ptr<Device> device, const KernelRunnerOptions& options)
    : device_(std::move(device)),
      options_(options),
      stream_(*device_->CreateStream("benchmark")),
      began_(std::chrono::steady_clock::now()) {}

Tensor KernelRunner::Random(DType dtype, Shape shape, double deviation) {
  const Tensor made = *Tensor::Empty(*device_, dtype, std::move(shape));
  for (int64_t filled = 0; filled < made.numel();) {
    const int64_t length = std::min(made.numel() - filled, kNumbers - next_number_);
    device_->ops().CastDivide(numbers_.Slice({next_number_, next_number_ + length}),
                              made.Slice({filled, filled + length}), 1 / deviation, *stream_);
    filled += length;
    next_number_ = (next_number_ + length) % kNumbers;
  }
  return made;
}

Tensor KernelRunner::Tokens(int64_t numel, int64_t classes) {
  std::vector<float> uniform(numel);
  FillUniform(Philox(/*seed=*/2, next_seed_++), 0, absl::MakeSpan(uniform));
  std::vector<int32_t> tokens(numel);
  for (int64_t i = 0; i < numel; ++i) {
    const double token = std::pow(static_cast<double>(classes), static_cast<double>(uniform[i])) - 1;
    tokens[i] = static_cast<int32_t>(std::min(token, static_cast<double>(classes - 1)));
  }
  const Tensor made = *Tensor::Empty(*device_, DType::kInt32, {numel});
  stream_->CopyAsync(made.data(), tokens.data(), made.nbytes());
  Check(stream_->Synchronize().ok(), "tokens are copied");
  return made;
}

Tensor KernelRunner::Zeros(DType dtype, Shape shape) {
  const Tensor made = *Tensor::Empty(*device_, dtype, std::move(shape));
  device_->ops().Zero(made, *stream_);
  return made;
}

absl::Status KernelRunner::Measure(const KernelCase& kernel, const std::function<Launch()>& make) {
  if (!absl::StrContains(absl::StrCat(kernel.name, ", ", kernel.shape), options_.filter)) return absl::OkStatus();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
  if (options_.seconds > 0 && spent.count() > options_.seconds) {
    ++skipped_;
    return absl::OkStatus();
  }
  std::vector<Launch> launches;
  for (int64_t i = 0; i < SetsFor(kernel.bytes); ++i) launches.push_back(make());
  FSDP_ASSIGN_OR_RETURN(Burst burst, WarmUp(std::move(launches)));
  const bool bound_by_memory = kernel.flops == 0;
  Burst copy;
  if (bound_by_memory) {
    FSDP_ASSIGN_OR_RETURN(copy, WarmUp(Copies(kernel.bytes)));
  }
  for (int round = 0; round < options_.rounds; ++round) {
    FSDP_ASSIGN_OR_RETURN(burst.seconds.emplace_back(), Run(burst));
    if (!bound_by_memory) continue;
    FSDP_ASSIGN_OR_RETURN(copy.seconds.emplace_back(), Run(copy));
  }
  ++measured_;
  Print(kernel, burst.seconds,
        bound_by_memory ? absl::StrFormat(", \"of_copy\": %.3f", Median(copy.seconds) / Median(burst.seconds)) : "");
  return absl::OkStatus();
}

absl::StatusOr<KernelRunner::Burst> KernelRunner::WarmUp(std::vector<Launch> launches) {
  Burst burst;
  burst.launches = std::move(launches);
  const auto sets = static_cast<int64_t>(burst.launches.size());
  // In the first of these passes kernels choose their plans and workspaces, outside of the capture.
  double pass = 0;
  for (int i = 0; i < 2; ++i) {
    timer_->Begin();
    for (const Launch& launch : burst.launches) launch();
    timer_->End();
    FSDP_ASSIGN_OR_RETURN(pass, timer_->Seconds());
  }
  // Short kernels are launched often, so that the gap between two graphs is small; long ones once for each set.
  const auto passes = static_cast<int64_t>(options_.burst_seconds / std::max(pass, 1e-6)) + 1;
  burst.graph_launches = sets * std::min(passes, (options_.graph_launches + sets - 1) / sets);
  FSDP_ASSIGN_OR_RETURN(burst.graph, CaptureWork(*stream_, [&] {
                          for (int64_t i = 0; i < burst.graph_launches; ++i) burst.launches[i % sets]();
                          return absl::OkStatus();
                        }));
  FSDP_ASSIGN_OR_RETURN(const double launch, Run(burst));
  burst.replays = 1 + static_cast<int64_t>(options_.burst_seconds / launch) / burst.graph_launches;
  return burst;
}

absl::StatusOr<double> KernelRunner::Run(const Burst& burst) {
  timer_->Begin();
  for (int64_t i = 0; i < burst.replays; ++i) burst.graph->Replay();
  timer_->End();
  FSDP_ASSIGN_OR_RETURN(const double seconds, timer_->Seconds());
  // Avoids an infinite rate if the clock is too coarse to show a difference.
  return std::max(seconds, 1e-9) / static_cast<double>(burst.replays * burst.graph_launches);
}

std::vector<KernelRunner::Launch> KernelRunner::Copies(int64_t bytes) {
  std::vector<Launch> launches;
  for (int64_t i = 0; i < SetsFor(bytes); ++i) {
    const Tensor from = Random(DType::kBFloat16, {(bytes + 3) / 4}), to = Zeros(DType::kBFloat16, from.shape());
    launches.push_back([this, from, to] { stream_->CopyAsync(to.data(), from.data(), from.nbytes()); });
  }
  return launches;
}

int64_t KernelRunner::SetsFor(int64_t bytes) const { return (options_.cold_bytes + bytes - 1) / bytes; }

}  // namespace fsdp
