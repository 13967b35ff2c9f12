// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_contents.h"

#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/common_encoding.h"
#include "fsdp/checkpoint/foreign/megatron/common_values.h"
#include "fsdp/checkpoint/foreign/megatron/optimizer_stacks.h"
#include "fsdp/checkpoint/foreign/megatron/stacks.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/source/without_value.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// True for an extra value that common.pt holds: a plain value of the program.
bool IsPlainExtra(const StateDict::Entry& entry, const std::set<StateKey>& parts) {
  const auto* const text = std::get_if<std::string>(&entry.second);
  if (text == nullptr || parts.count(entry.first) != 0) return false;
  if (NameOfModelValue(entry.first) || entry.first == SafetensorsMetadataKey()) return false;
  return !HoldsReference(PythonOfText(*text));
}

class Fitter {
 public:
  explicit Fitter(FormatContents& contents) : contents_(contents) {}

  absl::StatusOr<std::vector<std::string>> Fit() {
    notes_ = LeaveOutUnstorableNames(contents_.state);
    FSDP_ASSIGN_OR_RETURN(parts_, PartsOfExtras(contents_.state));
    FSDP_ASSIGN_OR_RETURN(const std::vector<Stack> model, StacksOf(contents_.state));
    FSDP_ASSIGN_OR_RETURN(const OptimizerStacks optimizer, OptimizerStacksOf(contents_.state, model));
    has_optimizer_ = !optimizer.empty();
    StateDict kept;
    for (const StateDict::Entry& entry : contents_.state.entries()) {
      if (IsKept(entry)) kept.Set(entry.first, entry.second);
    }
    AddNotes();
    kept.type = contents_.state.type;
    contents_.state = std::move(kept);
    const CommonOfRun run = {.has_optimizer = has_optimizer_, .step = 0};
    FSDP_RETURN_IF_ERROR(EncodeCommon(contents_.state, run).status());
    return std::move(notes_);
  }

 private:
  bool IsKept(const StateDict::Entry& entry) {
    const StateKey& key = entry.first;
    const bool is_state = key.section == Section::kOptimState || StateOfKey(key).has_value();
    const bool is_of_optimizer = key.section == Section::kParamGroups || key == StateKey::Extra(kOptimizerCommon);
    if (is_state || is_of_optimizer) {
      if (!has_optimizer_) ++without_state_;
      return has_optimizer_;
    }
    if (key.section == Section::kModel) {
      return std::holds_alternative<ShardedTensor>(entry.second) && contents_.state.aliases.count(key.fqn) == 0;
    }
    if (IsPlainExtra(entry, parts_)) return true;
    if (std::optional<std::string> name = NameOfModelValue(key)) {
      of_model_.push_back(*std::move(name));
      return false;
    }
    if (left_out_++ == 0) a_left_out_ = key.fqn;
    return false;
  }

  void AddNotes() {
    if (left_out_ > 0) {
      notes_.push_back(absl::StrCat(left_out_, left_out_ == 1 ? " extra value, " : " extra values, such as ",
                                    Quote(a_left_out_), left_out_ == 1 ? ", is" : ", are",
                                    " left out: megatron holds plain values besides the model and its optimizer"));
    }
    if (without_state_ > 0) {
      notes_.push_back(absl::StrCat(without_state_,
                                    without_state_ == 1 ? " optimizer value is" : " optimizer values are",
                                    " left out: there is no state with the shape of a parameter"));
    }
    if (!of_model_.empty()) {
      notes_.push_back(absl::StrCat("left out of the model, because megatron holds tensors only: ", SomeOf(of_model_)));
    }
    for (const auto& [alias, target] : contents_.state.aliases) {
      notes_.push_back(absl::StrCat(Quote(alias), " is left out: it is ", Quote(target), " under another name"));
    }
    StateDict metadata;
    KeepSafetensorsMetadata(contents_.metadata, metadata);
    if (!metadata.empty()) notes_.emplace_back("__metadata__ is left out: megatron has no place for it");
    if (contents_.step < 0) {
      notes_.emplace_back("the step is not known: written as a release, which starts at iteration 0");
    }
  }

  FormatContents& contents_;
  std::set<StateKey> parts_;  // of extra values
  std::vector<std::string> notes_;
  bool has_optimizer_ = false;
  std::vector<std::string> of_model_;  // values that are left out
  int64_t left_out_ = 0;
  std::string a_left_out_;
  int64_t without_state_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> FitMegatron(FormatContents& contents) { return Fitter(contents).Fit(); }

}  // namespace fsdp
