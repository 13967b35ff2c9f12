// SPDX-License-Identifier: Apache-2.0
//
// Keys that begin with "optimizer." are the optimizer's; several optimizers (experts have their own) may add
// "chained_0." before it:
//
//   optimizer.state.exp_avg.KEY    with the shape of KEY: state "exp_avg" of that parameter, "param" is its float32
//   copy optimizer.distributed....      (dp_reshardable) buckets of many parameters, whose bounds only Megatron-Core
//   knows,
//                                  from the model that it has built: left out
//
// Values that are not tensors are a rank's pickles, KEY/shard_1_4: generators' states, and the _extra_state of modules,
// which is empty without FP8. They are left out, and named by kind.
#include "fsdp/checkpoint/foreign/megatron/dist_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/stacked_name.h"
#include "fsdp/checkpoint/foreign/megatron/vocabulary_note.h"
#include "fsdp/checkpoint/source/byte_total.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

constexpr size_t kMostNamed = 20;  // of values that are left out
constexpr absl::string_view kExtraState = "_extra_state";
constexpr absl::string_view kShard = "/shard_";
constexpr int64_t kEntryBytes = 400;                   // of a tensor in StateDict and TorchState, and later
constexpr int64_t kMinNameBudget = int64_t{32} << 20;  // of memory for the names of layers
constexpr int64_t kNameBudgetOfMetadata = 3;           // the same, for each byte of .metadata
constexpr char kDistributed[] = "optimizer.distributed.";

// "chained_0." at the front of an optimizer's key is taken off.
absl::string_view WithoutChain(absl::string_view key) {
  if (!absl::StartsWith(key, "chained_")) return key;
  const size_t dot = key.find('.');
  return dot == key.npos || !absl::StartsWith(key.substr(dot + 1), "optimizer.") ? key : key.substr(dot + 1);
}

// Optimizer state by its key: "exp_avg" of "decoder.final_layernorm.weight".
struct OptimizerKey {
  std::string state;
  std::string parameter;
};

std::optional<OptimizerKey> ParseOptimizerKey(absl::string_view key) {
  if (!absl::ConsumePrefix(&key, "optimizer.state.")) return std::nullopt;
  const size_t dot = key.find('.');
  if (dot == 0 || dot == key.npos || dot + 1 == key.size()) return std::nullopt;
  return OptimizerKey{std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
}

class Builder {
 public:
  explicit Builder(DistStateInput input)
      : input_(std::move(input)),
        name_budget_(std::max(kMinNameBudget, kNameBudgetOfMetadata * input_.metadata_bytes)) {}

  absl::StatusOr<TorchState> Build() {
    for (const DcpEntry& entry : input_.entries) {
      if (!IsOptimizer(entry)) FSDP_RETURN_IF_ERROR(AddModel(entry));
    }
    for (const DcpEntry& entry : input_.entries) {
      if (IsOptimizer(entry) && !input_.model_only) FSDP_RETURN_IF_ERROR(AddOptimizer(entry));
    }
    AddSteps();
    FSDP_RETURN_IF_ERROR(AddParamGroups());
    for (auto& [name, text] : input_.common.texts) {
      if (input_.model_only && name == kOptimizerCommon) continue;
      FSDP_RETURN_IF_ERROR(AddText(StateKey::Extra(name), std::move(text)));
    }
    Describe();
    state_.leaves.resize(state_.contents.entries().size());
    return std::move(state_);
  }

 private:
  static bool IsOptimizer(const DcpEntry& entry) { return absl::StartsWith(WithoutChain(entry.name()), "optimizer."); }

  absl::Status AddModel(const DcpEntry& entry) {
    if (!entry.is_tensor()) return LeaveOutValue(entry.name());
    if (absl::EndsWith(entry.name(), kExtraState)) {
      if (extra_states_++ == 0) an_extra_state_ = entry.name();
      return absl::OkStatus();
    }
    parameters_[entry.name()] = static_cast<int>(entry.tensor());
    const Shape& shape = input_.tensor(static_cast<int>(entry.tensor())).shape;
    if (const std::string note = VocabularyNote(entry.name(), shape); !note.empty())
      state_.layout.notes.push_back(note);
    return AddStacked(entry.name(), static_cast<int>(entry.tensor()), "");
  }

  // A rank's pickle: KEY/shard_OFFSETS_SHAPE.
  absl::Status LeaveOutValue(const std::string& name) {
    const absl::string_view key = absl::string_view(name).substr(0, name.rfind(kShard.data()));
    if (absl::EndsWith(key, kExtraState)) {
      if (extra_states_++ == 0) an_extra_state_ = std::string(key);
    } else {
      ++values_[std::string(key)];
    }
    return absl::OkStatus();
  }

  // Keys optimizer.state.STATE.PARAMETER, which fully reshardable saves have. The buckets of other saves cannot be
  // divided by anything in the files, so they are left out by name.
  absl::Status AddOptimizer(const DcpEntry& entry) {
    const absl::string_view key = WithoutChain(entry.name());
    if (absl::StartsWith(key, kDistributed)) {
      if (entry.is_tensor()) ++buckets_;
      return absl::OkStatus();
    }
    if (!entry.is_tensor()) return LeaveOutValue(entry.name());
    const std::optional<OptimizerKey> parsed = ParseOptimizerKey(key);
    if (!parsed) {
      ++values_[entry.name()];
      return absl::OkStatus();
    }
    const auto parameter = parameters_.find(parsed->parameter);
    const auto tensor = static_cast<int>(entry.tensor());
    if (parameter == parameters_.end()) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(entry.name()), ": there is no parameter ",
                                              Quote(parsed->parameter), ", whose state it is"));
    }
    const Shape& shape = input_.tensor(tensor).shape;
    const Shape& wanted = input_.tensor(parameter->second).shape;
    if (shape != wanted) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(entry.name()), ": stored shape ", shape.ToString(),
                                              " != ", wanted.ToString(), " of its parameter"));
    }
    return AddStacked(parsed->parameter, tensor, parsed->state);
  }

  // Adds tensor `tensor` under the names that `key` stands for: as state `state` of a parameter, or, if it is empty, as
  // a parameter.
  absl::Status AddStacked(const std::string& key, int tensor, const std::string& state) {
    const StackedName name = StackedName::Of(key);
    const DcpTensor& stored = input_.tensor(tensor);
    const Shape& shape = stored.shape;
    if (shape.rank() < name.axes()) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(key), ": shape ", shape.ToString(), " has no axis for ",
                                              name.axes() == 1 ? "its stack" : "layers and experts"));
    }
    FSDP_RETURN_IF_ERROR(total_.Add(key, stored.dtype, shape));
    int64_t count = 1;
    for (int axis = 0; axis < name.axes(); ++axis) {
      FSDP_RETURN_IF_ERROR(CheckStack(key, name.Stack(axis), shape.dim(axis)));
      if (shape.dim(axis) > 0 && count > name_budget_ / shape.dim(axis)) return TooManyNames(key, shape);
      count *= shape.dim(axis);
    }
    const int64_t bytes = kEntryBytes + 3 * static_cast<int64_t>(key.size() + state.size());
    if (count > name_budget_ / bytes) return TooManyNames(key, shape);
    // A stack of a billion layers with an element each is a few bytes of .metadata; names are made only for as many as
    // it explains.
    name_budget_ -= count * bytes;
    if (name.axes() > 0) ++stacked_;
    const absl::StatusOr<Shape> part = Shape::Create(shape.dims().subspan(name.axes()));
    if (!part.ok()) return part.status();
    // One name for each layer and expert, as the model of one rank has them: a view of the stack at an offset.
    std::vector<int64_t> at(name.axes(), 0);
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      for (int axis = name.axes() - 1; axis >= 0; --axis) {
        at[axis] = rest % shape.dim(axis);
        rest /= shape.dim(axis);
      }
      const std::string fqn = name.At(at);
      StateKey added = state.empty() ? StateKey::Model(fqn) : StateKey::OptimState(fqn, state);
      FSDP_RETURN_IF_ERROR(CheckStateKey(added));
      if (state_.contents.contains(added)) return Twice(added);
      state_.Set(std::move(added), stored.dtype, *part,
                 {TorchTensorPart{.tensor = tensor, .offset = i * part->numel()}});
      if (!state.empty() && (with_state_.empty() || with_state_.back() != fqn)) with_state_.push_back(fqn);
    }
    return absl::OkStatus();
  }

  static absl::Status TooManyNames(const std::string& key, const Shape& shape) {
    return absl::ResourceExhaustedError(absl::StrCat("tensor ", Quote(key), ": a stack of shape ", shape.ToString(),
                                                     " has more layers or experts than .metadata explains"));
  }

  // A layer without one of its tensors would be taken for a smaller one.
  absl::Status CheckStack(const std::string& key, const std::string& stack, int64_t length) {
    const auto [at, is_new] = stacks_.try_emplace(stack, length, key);
    if (at->second.first == length) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("tensor ", Quote(key), " has ", length, " along the axis of ", Quote(stack),
                                            ", but ", Quote(at->second.second), " has ", at->second.first));
  }

  // PyTorch's optimizers keep the number of steps for each parameter, Megatron-Core once.
  void AddSteps() {
    if (with_state_.empty() || !input_.common.optimizer_step) return;
    const auto step = static_cast<float>(*input_.common.optimizer_step);
    TorchNumber number;
    std::memcpy(number.bytes.data(), &step, sizeof(step));
    for (const std::string& fqn : with_state_) {
      const StateKey key = StateKey::OptimState(fqn, "step");
      if (!state_.contents.contains(key)) state_.Set(key, DType::kFloat32, *Shape::Create({}), {number});
    }
  }

  // Megatron-Core's groups do not say which parameters they have. With one group that is clear.
  absl::Status AddParamGroups() {
    const PythonJson& groups = input_.common.param_groups;
    if (with_state_.empty()) return absl::OkStatus();
    if (!input_.common.named_groups.empty()) {
      return AddText(StateKey::ParamGroups(), WithPlainGroups(input_.common.named_groups).dump());
    }
    if (groups.empty()) return absl::OkStatus();
    const std::optional<PythonJson> members = groups.size() == 1 ? MembersOf(groups[0]) : std::nullopt;
    if (!members) {
      state_.layout.notes.push_back(
          absl::StrCat("the ", groups.size(),
                       " param_groups are in the extra value \"optimizer.common\": the file does "
                       "not say which parameters are in which"));
      return absl::OkStatus();
    }
    PythonJson group = *members;
    group.erase("step");
    std::vector<std::string> names = with_state_;
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    group["params"] = names;
    return AddText(StateKey::ParamGroups(), PythonJson::array({std::move(group)}).dump());
  }

  absl::Status AddText(StateKey key, std::string text) {
    if (key.section == StateKey::Section::kExtra) FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    if (state_.contents.contains(key)) return Twice(key);
    state_.contents.Set(std::move(key), std::move(text));
    return absl::OkStatus();
  }

  static absl::Status Twice(const StateKey& key) {
    return absl::DataLossError(absl::StrCat(Quote(key.ToString()), " occurs twice"));
  }

  void Describe() {
    std::vector<std::string>& left_out = state_.left_out;
    left_out = std::move(input_.common.left_out);
    if (extra_states_ > 0) {
      left_out.push_back(absl::StrCat(extra_states_, " _extra_state of modules, such as ", Quote(an_extra_state_),
                                      " (Transformer Engine's state of FP8, empty without)"));
    }
    if (buckets_ > 0) {
      left_out.push_back(absl::StrCat(
          "the optimizer's state, ", buckets_, " buckets (",
          input_.common.sharding_type.empty() ? "not fully_reshardable" : Printable(input_.common.sharding_type),
          ": which parameter is where in them is not in the file; save with "
          "--dist-ckpt-optim-fully-reshardable to keep it)"));
    }
    size_t named = 0;
    for (const auto& [key, count] : values_) {
      if (named++ == kMostNamed) break;
      left_out.push_back(absl::StrCat(Quote(key), " (", count, count == 1 ? " value" : " values", " of ranks)"));
    }
    if (values_.size() > kMostNamed) left_out.push_back(absl::StrCat("and ", values_.size() - kMostNamed, " more"));
    std::string stacks;
    for (const auto& [stack, length] : stacks_) {
      absl::StrAppend(&stacks, stacks.empty() ? "" : ", ", Printable(stack), " (", length.first, ")");
    }
    if (stacked_ > 0) {
      state_.layout.notes.push_back(absl::StrCat(stacked_, " stacked tensors are divided by number: ", stacks));
    }
  }

  DistStateInput input_;
  int64_t name_budget_;
  ByteTotal total_;
  TorchState state_;
  absl::flat_hash_map<std::string, int> parameters_;               // keys of the model, and their tensors
  std::map<std::string, std::pair<int64_t, std::string>> stacks_;  // length, and a key with it
  std::vector<std::string> with_state_;                            // parameters; some more than once
  int64_t stacked_ = 0;
  int64_t extra_states_ = 0;
  std::string an_extra_state_;
  int64_t buckets_ = 0;
  std::map<std::string, int64_t> values_;  // left out, by key
};

}  // namespace

absl::StatusOr<TorchState> MakeDistState(DistStateInput input) { return Builder(std::move(input)).Build(); }

}  // namespace fsdp
