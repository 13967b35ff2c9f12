// SPDX-License-Identifier: Apache-2.0
//
// Times of the steps of a transformer, for benchmark.py: as one process the bare module and the sharded one,
// alternating step by step; as a rank of a job only the sharded one. With --bfloat16 two sharded ones: one casts inputs
// of blocks in CallUnit, the other at operators. Rank 0 prints one line of JSON.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/tests/libtorch/models.h"

ABSL_FLAG(std::string, size, "512,256,4,4,256,2", "vocabulary, width, heads, blocks, length, and rows of a rank");
ABSL_FLAG(int, steps, 12, "steps of each");
ABSL_FLAG(bool, bfloat16, false,
          "computes in bfloat16 by FSDP2, with CallUnit and without, in place of float32 by FSDP1");
ABSL_FLAG(std::string, device, "cpu", "cpu, or cuda: GPU 0, which takes a LibTorch that has one");

namespace fsdp {
namespace {

absl::StatusOr<TransformerSize> SizeOfFlag(int ranks) {
  std::vector<int64_t> numbers;
  for (const absl::string_view one : absl::StrSplit(absl::GetFlag(FLAGS_size), ',')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(one, &number) || number < 1) number = 0;
    numbers.push_back(number);
  }
  if (numbers.size() != 6 || std::count(numbers.begin(), numbers.end(), 0) != 0 || numbers[1] % numbers[2] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size=", absl::GetFlag(FLAGS_size),
                     ": expected six positive numbers, of which the third divides the second"));
  }
  return TransformerSize{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] * ranks};
}

torch::optim::AdamWOptions Options() { return torch::optim::AdamWOptions(1e-3); }

// Each trainable tensor once; parameters() has tied ones under both names.
std::vector<at::Tensor> ParametersOnce(torch::nn::Module& module) {
  std::vector<at::Tensor> once;
  for (const at::Tensor& parameter : module.parameters()) {
    if (std::none_of(once.begin(), once.end(), [&](const at::Tensor& o) { return o.is_same(parameter); })) {
      once.push_back(parameter);
    }
  }
  return once;
}

c10::Device TorchDevice() { return c10::Device(absl::GetFlag(FLAGS_device) == "cuda" ? "cuda:0" : "cpu"); }

std::shared_ptr<TestModel> ModelOnDevice(const TransformerSize& size, bool calls_units) {
  const std::shared_ptr<TestModel> model = MakeTransformer(size, calls_units);
  model->to(TorchDevice());
  return model;
}

Batch OnDevice(const Batch& batch) { return {batch.x.to(TorchDevice()), batch.y.to(TorchDevice())}; }

void WaitForDevice() {
  if (TorchDevice().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(TorchDevice().type());
  guard.synchronizeStream(guard.getStream(TorchDevice()));
}

class BareRun {
 public:
  explicit BareRun(const TransformerSize& size)
      : model_(ModelOnDevice(size, /*calls_units=*/true)), optimizer_(ParametersOnce(*model_), Options()) {}

  absl::Status Step(int step) {
    model_->Loss(step, OnDevice(model_->BatchOf(step))).backward();
    optimizer_.step();
    optimizer_.zero_grad();
    WaitForDevice();
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<TestModel> model_;
  torch::optim::AdamW optimizer_;
};

// Blocks are units. In float32 by Shard, in bfloat16 by FullyShard.
absl::StatusOr<std::unique_ptr<ShardedModule>> ShardBlocks(TestModel& model, std::shared_ptr<ProcessGroup> group,
                                                           bool bfloat16) {
  const auto is_block = [](const Module& module) { return module.type_name() == "Block"; };
  if (!bfloat16) return Shard(model, group, {.auto_wrap_policy = LambdaWrapPolicy(is_block)});
  FullyShardOptions options;
  options.mp_policy.param_dtype = DType::kBFloat16;
  options.mp_policy.reduce_dtype = DType::kFloat32;
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  return FullyShard(model, mesh, is_block, options);
}

class ShardedRun {
 public:
  static absl::StatusOr<ShardedRun> Create(const TransformerSize& size, std::shared_ptr<ProcessGroup> group,
                                           bool bfloat16, bool calls_units) {
    ShardedRun run;
    run.model_ = ModelOnDevice(size, calls_units);
    run.model_bytes_ = 0;
    for (const at::Tensor& parameter : ParametersOnce(*run.model_)) run.model_bytes_ += parameter.nbytes();
    FSDP_ASSIGN_OR_RETURN(run.sharded_, ShardBlocks(*run.model_, group, bfloat16));
    FSDP_ASSIGN_OR_RETURN(run.optimizer_,
                          TorchOptimizer::Create(*run.sharded_, std::make_unique<torch::optim::AdamW>(
                                                                    run.sharded_->LocalParameters(), Options())));
    run.group_ = std::move(group);
    return run;
  }

  absl::Status Step(int step) {
    const Batch batch = OnDevice(model_->BatchOf(step).Of(group_->rank(), group_->size()));
    sharded_->Forward([&] { return model_->Loss(step, batch); }).backward();
    FSDP_RETURN_IF_ERROR(optimizer_->Step(sharded_->stream()));
    optimizer_->ZeroGrad();
    return sharded_->stream().Synchronize();
  }

  ShardedModule& sharded() { return *sharded_; }
  int64_t model_bytes() const { return model_bytes_; }

 private:
  ShardedRun() = default;

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<TestModel> model_;
  std::unique_ptr<ShardedModule> sharded_;
  std::unique_ptr<TorchOptimizer> optimizer_;
  int64_t model_bytes_ = 0;
};

std::string Join(const std::vector<double>& seconds) { return absl::StrCat("[", absl::StrJoin(seconds, ", "), "]"); }

absl::Status Measure() {
  at::set_num_threads(1);
  InitOptions options;
  if (!TorchDevice().is_cpu()) {
    FSDP_ASSIGN_OR_RETURN(options.device, CreateCudaDevice(0));
  }
  FSDP_ASSIGN_OR_RETURN(const auto group, InitProcessGroup(options));
  FSDP_ASSIGN_OR_RETURN(const TransformerSize size, SizeOfFlag(group->size()));
  const bool bfloat16 = absl::GetFlag(FLAGS_bfloat16);
  std::optional<BareRun> bare;
  std::optional<ShardedRun> at_operators;
  FSDP_ASSIGN_OR_RETURN(ShardedRun sharded, ShardedRun::Create(size, group, bfloat16, /*calls_units=*/true));
  if (bfloat16) {
    FSDP_ASSIGN_OR_RETURN(at_operators, ShardedRun::Create(size, group, bfloat16, /*calls_units=*/false));
  } else if (group->size() == 1) {
    bare.emplace(size);
  }
  std::vector<double> bare_seconds, sharded_seconds, at_operators_seconds;
  const auto timed = [&](auto& run, int step, std::vector<double>& seconds) -> absl::Status {
    FSDP_RETURN_IF_ERROR(group->AllGatherObject("").status());  // all ranks begin together
    const absl::Time start = absl::Now();
    FSDP_RETURN_IF_ERROR(run.Step(step));
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    return absl::OkStatus();
  };
  for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    if (bare) FSDP_RETURN_IF_ERROR(timed(*bare, step, bare_seconds));
    FSDP_RETURN_IF_ERROR(timed(sharded, step, sharded_seconds));
    if (at_operators) FSDP_RETURN_IF_ERROR(timed(*at_operators, step, at_operators_seconds));
  }
  if (group->rank() != 0) return absl::OkStatus();
  std::printf(
      "{\"bare\": %s, \"sharded\": %s, \"at_operators\": %s, \"bound_bytes\": %ld, \"model_bytes\": %ld, "
      "\"plan\": \"%s\"}\n",
      Join(bare_seconds).c_str(), Join(sharded_seconds).c_str(), Join(at_operators_seconds).c_str(),
      sharded.sharded().TakePeakBoundBytes(), sharded.model_bytes(),
      absl::StrJoin(absl::StrSplit(sharded.sharded().fsdp().memory_plan().ToString(false), '\n'), "; ").c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> exit = ParseFlags(argc, argv, "benchmark [flags]")) return *exit;
  if (absl::GetFlag(FLAGS_steps) < 1) {
    std::fprintf(stderr, "benchmark: --steps: expected at least 1\n");
    return kExitUsage;
  }
  if (const std::string device = absl::GetFlag(FLAGS_device); device != "cpu" && device != "cuda") {
    std::fprintf(stderr, "benchmark: --device=%s: expected cpu or cuda\n", device.c_str());
    return kExitUsage;
  }
  const absl::Status status = Measure();
  if (status.ok()) return kExitDone;
  std::fprintf(stderr, "benchmark: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
