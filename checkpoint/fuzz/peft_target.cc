// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/peft/merge_plan.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/source/adapter_config.h"

namespace fsdp {
namespace {

// A line is a name and a shape: "base_model.model.layers.0.q_proj.lora_A.weight 2 8".
StateDict StateOfLines(std::string_view lines) {
  StateDict state;
  const std::vector<std::string> split = absl::StrSplit(std::string(lines), '\n');
  for (const std::string& line : split) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    std::vector<int64_t> dims;
    for (size_t i = 1; i < words.size(); ++i) {
      int64_t dim = -1;
      (void)absl::SimpleAtoi(words[i], &dim);
      dims.push_back(dim);
    }
    absl::StatusOr<Shape> shape = Shape::Create(dims);
    if (words[0].empty() || !shape.ok()) continue;
    ShardedTensor tensor;
    tensor.dtype = DType::kBFloat16;
    tensor.shape = *std::move(shape);
    state.Set(StateKey::Model(words[0]), std::move(tensor));
  }
  return state;
}

const StateDict& Base() {
  static const auto* base = new StateDict(
      StateOfLines("model.embed_tokens.weight 17 8\nmodel.layers.0.q_proj.weight 8 8\nmodel.layers.0.q_proj.bias 8\n"
                   "model.layers.1.up_proj.weight 12 8\nmodel.layers.1.conv.weight 4 3 2 2\nlm_head.weight 17 8"));
  return *base;
}

void CheckChange(const StateKey& key, const TensorChange& change, const StateDict& adapter) {
  const ShardedTensor* const tensor = Base().FindTensor(key);
  Check(tensor != nullptr || change.whole, "a tensor is changed that neither side has");
  if (change.whole) {
    const ShardedTensor* const whole = adapter.FindTensor(*change.whole);
    Check(whole != nullptr && (tensor == nullptr || whole->shape == tensor->shape),
          "a tensor is replaced by another shape");
  }
  if (change.added) {
    Check(adapter.FindTensor(*change.added)->shape == tensor->shape, "a tensor of another shape is added");
  }
  if (!change.low_rank) return;
  const LowRank& low_rank = *change.low_rank;
  Check(low_rank.rank > 0 && low_rank.in * low_rank.out == tensor->shape.numel(), "a product has another shape");
  Check(adapter.FindTensor(low_rank.a)->shape.numel() == low_rank.rank * low_rank.in, "A has another shape");
  Check(adapter.FindTensor(low_rank.b)->shape.numel() == low_rank.rank * low_rank.out, "B has another shape");
}

}  // namespace

bool FuzzAdapter(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const absl::StatusOr<AdapterConfig> config = ParseAdapterConfig(bytes.substr(0, end));
  if (!config.ok()) return false;
  (void)config->ToString();
  const StateDict adapter = StateOfLines(bytes.substr(std::min(end + 1, bytes.size())));
  const absl::StatusOr<MergePlan> plan = PlanMerge(Base(), adapter, *config);
  if (!plan.ok()) return false;
  for (const auto& [key, change] : plan->changes) CheckChange(key, change, adapter);
  return true;
}

}  // namespace fsdp
