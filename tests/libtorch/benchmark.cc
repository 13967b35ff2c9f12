// SPDX-License-Identifier: Apache-2.0
//
// Times of the steps of a transformer, for benchmark.py: as one process the bare module and the sharded one, step by
// step in turn; as a rank of a job the sharded one. Rank 0 prints one line of JSON.
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
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/tests/libtorch/models.h"

ABSL_FLAG(std::string, size, "512,256,4,4,256,2", "vocabulary, width, heads, blocks, length, and rows of a rank");
ABSL_FLAG(int, steps, 12, "steps of each");

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

class BareRun {
 public:
  explicit BareRun(const TransformerSize& size)
      : model_(MakeTransformer(size)), optimizer_(ParametersOnce(*model_), Options()) {}

  void Step(int step) {
    model_->Loss(step, model_->BatchOf(step)).backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  std::shared_ptr<TestModel> model_;
  torch::optim::AdamW optimizer_;
};

class ShardedRun {
 public:
  static absl::StatusOr<ShardedRun> Create(const TransformerSize& size, std::shared_ptr<ProcessGroup> group) {
    ShardedRun run;
    run.model_ = MakeTransformer(size);
    run.model_bytes_ = 0;
    for (const at::Tensor& parameter : ParametersOnce(*run.model_)) run.model_bytes_ += parameter.nbytes();
    const auto is_block = [](const Module& module) { return module.type_name() == "Block"; };
    FSDP_ASSIGN_OR_RETURN(run.sharded_, Shard(*run.model_, group, {.auto_wrap_policy = LambdaWrapPolicy(is_block)}));
    FSDP_ASSIGN_OR_RETURN(run.optimizer_,
                          TorchOptimizer::Create(*run.sharded_, std::make_unique<torch::optim::AdamW>(
                                                                    run.sharded_->LocalParameters(), Options())));
    run.group_ = std::move(group);
    return run;
  }

  absl::Status Step(int step) {
    const Batch batch = model_->BatchOf(step).Of(group_->rank(), group_->size());
    sharded_->Forward([&] { return model_->Loss(step, batch); }).backward();
    FSDP_RETURN_IF_ERROR(optimizer_->Step(sharded_->stream()));
    optimizer_->ZeroGrad();
    return absl::OkStatus();
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
  FSDP_ASSIGN_OR_RETURN(const auto group, InitProcessGroup());
  FSDP_ASSIGN_OR_RETURN(const TransformerSize size, SizeOfFlag(group->size()));
  std::optional<BareRun> bare;
  if (group->size() == 1) bare.emplace(size);
  FSDP_ASSIGN_OR_RETURN(ShardedRun sharded, ShardedRun::Create(size, group));
  std::vector<double> bare_seconds, sharded_seconds;
  for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    if (bare) {
      const absl::Time start = absl::Now();
      bare->Step(step);
      bare_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    }
    FSDP_RETURN_IF_ERROR(group->GatherBlobs("").status());  // all ranks begin together
    const absl::Time start = absl::Now();
    FSDP_RETURN_IF_ERROR(sharded.Step(step));
    FSDP_RETURN_IF_ERROR(sharded.sharded().stream().Synchronize());
    sharded_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
  }
  if (group->rank() != 0) return absl::OkStatus();
  std::printf(
      "{\"bare\": %s, \"sharded\": %s, \"bound_bytes\": %ld, \"model_bytes\": %ld, \"plan\": \"%s\"}\n",
      Join(bare_seconds).c_str(), Join(sharded_seconds).c_str(), sharded.sharded().TakePeakBoundBytes(),
      sharded.model_bytes(),
      absl::StrJoin(absl::StrSplit(sharded.sharded().fsdp().memory_plan().ToString(false), '\n'), "; ").c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> exit = ParseFlags(argc, argv, "benchmark [flags]")) return *exit;
  if (absl::GetFlag(FLAGS_steps) < 1) {
    std::fprintf(stderr, "benchmark: --steps: expected at least 1\n");
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
