// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/diff_summary.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

constexpr std::string_view kModel = "model/";
constexpr std::string_view kOptimState = "optim/state/";
constexpr std::string_view kOptim = "optim/";

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// The values that only one side has, without the tensors that the other side has under another prefix.
struct OneSided {
  int64_t model = 0;
  int64_t optimizer = 0;
  int64_t extra = 0;

  int64_t all() const { return model + optimizer + extra; }
  std::string ToString() const {
    std::vector<std::string> parts;
    if (model > 0) parts.push_back(Counted(model, "model value"));
    if (optimizer > 0) parts.push_back(Counted(optimizer, "optimizer value"));
    if (extra > 0) parts.push_back(Counted(extra, "extra value"));
    return absl::StrJoin(parts, ", ");
  }
};

// True if `others` has the tensor `name` with `other_prefix` in place of `prefix`.
bool IsRenamed(std::string_view name, const std::string& prefix, const std::string& other_prefix,
               const absl::flat_hash_set<std::string_view>& others) {
  for (const std::string_view section : {kModel, kOptimState}) {
    if (!StartsWith(name, section) || !StartsWith(name.substr(section.size()), prefix)) continue;
    const std::string rest(name.substr(section.size() + prefix.size()));
    return others.contains(std::string(section) + other_prefix + rest);
  }
  return false;
}

std::vector<std::string> WithoutRenamed(const std::vector<std::string>& names, const std::string& prefix,
                                        const std::vector<std::string>& others, const std::string& other_prefix) {
  if (prefix == other_prefix) return names;
  const absl::flat_hash_set<std::string_view> renamed(others.begin(), others.end());
  std::vector<std::string> left;
  std::copy_if(names.begin(), names.end(), std::back_inserter(left),
               [&](const std::string& name) { return !IsRenamed(name, prefix, other_prefix, renamed); });
  return left;
}

OneSided CountSections(const std::vector<std::string>& names) {
  OneSided side;
  for (const std::string& name : names) {
    ++(StartsWith(name, kModel) ? side.model : StartsWith(name, kOptim) ? side.optimizer : side.extra);
  }
  return side;
}

// "", or "the prefix "module."".
std::string PrefixText(const std::string& prefix) {
  return prefix.empty() ? "no prefix" : absl::StrCat("the prefix ", Quote(prefix));
}

// One pass over the tensors counts kinds of difference; a tensor counts in one kind, the first that explains it:
// another shape, then another dtype whose values are the same but for rounding, then other values.
class Summary {
 public:
  explicit Summary(const DiffReport& report) : report_(report) {
    for (const auto* tensors : {&report.tensors, &report.renamed.tensors}) {
      for (const TensorDiff& tensor : *tensors) Add(tensor);
    }
  }

  DiffSummary Make() && {
    AddNames();
    AddOneSided();
    if (shapes_ > 0) AddKind("shapes", absl::StrCat(Counted(shapes_, "tensor"), " of another shape"));
    if (!dtypes_.empty()) AddKind("dtypes", DTypesText());
    if (values_ > 0) AddKind("values", ValuesText());
    if (!report_.structure.empty()) {
      AddKind("structure", Counted(std::ssize(report_.structure), "difference") + " of texts and aliases");
    }
    return std::move(summary_);
  }

 private:
  void Add(const TensorDiff& tensor) {
    if (tensor.equal()) return;
    if (tensor.shape_a != tensor.shape_b) {
      ++shapes_;
      return;
    }
    const bool rounded = tensor.dtype_a != tensor.dtype_b && tensor.values.beyond_rounding == 0;
    if (tensor.dtype_a != tensor.dtype_b) {
      ++dtypes_[{tensor.dtype_a, tensor.dtype_b}];
      if (rounded) rounding_.Add(tensor.values);
      if (!rounded && tensor.values.outside == 0) has_tolerated_ = true;
    }
    if (tensor.values.outside == 0 || rounded) return;
    ++values_;
    nan_mismatches_ += tensor.values.nan_mismatches > 0 ? 1 : 0;
    if (largest_ == nullptr || tensor.values.max_abs > largest_->values.max_abs) largest_ = &tensor;
  }

  void AddKind(const char* kind, const std::string& text) {
    summary_.kinds.push_back(kind);
    summary_.sentences.push_back(absl::StrCat(kind, ": ", text));
  }

  void AddNames() {
    const RenamedTensors& renamed = report_.renamed;
    if (renamed.compared == 0) return;
    const bool is_equal = std::all_of(renamed.tensors.begin(), renamed.tensors.end(),
                                      [](const TensorDiff& tensor) { return tensor.equal(); });
    AddKind("names", absl::StrCat(Counted(renamed.compared, "tensor"), renamed.compared == 1 ? " has " : " have ",
                                  PrefixText(renamed.prefix_a), " in A, ", PrefixText(renamed.prefix_b), " in B",
                                  is_equal ? "; all are equal but for that" : ""));
  }

  void AddOneSided() {
    const OneSidedNames names = NamesOfOneSide(report_);
    const OneSided a = CountSections(names.a);
    const OneSided b = CountSections(names.b);
    if (a.all() + b.all() == 0) return;
    const bool is_optimizer = std::min(a.all(), b.all()) == 0 && a.optimizer + b.optimizer == a.all() + b.all();
    std::vector<std::string> parts;
    if (a.all() > 0) parts.push_back(absl::StrCat(a.ToString(), " only in A"));
    if (b.all() > 0) parts.push_back(absl::StrCat(b.ToString(), " only in B"));
    AddKind(is_optimizer ? "optimizer" : "missing", absl::StrJoin(parts, "; "));
  }

  std::string DTypesText() const {
    std::vector<std::string> pairs;
    for (const auto& [dtypes, count] : dtypes_) {
      pairs.push_back(absl::StrCat(Counted(count, "tensor"), count == 1 ? " is " : " are ",
                                   std::string(DTypeName(dtypes.first)), " in A, ",
                                   std::string(DTypeName(dtypes.second)), " in B"));
    }
    const std::string text = absl::StrJoin(pairs, "; ");
    if (values_ > 0) return text;
    if (has_tolerated_) return text + "; every value is within the tolerance";
    if (rounding_.changed == 0) return text + "; every value is equal";
    return absl::StrCat(text, "; every value is equal or is the other, rounded (max rel ",
                        absl::StrFormat("%.4g", rounding_.max_rel), ")");
  }

  std::string ValuesText() const {
    const int64_t compared = report_.compared + report_.renamed.compared;
    std::string text = absl::StrCat(values_, " of ", Counted(compared, "tensor"), values_ == 1 ? " differs" : " differ",
                                    ", at most by ", absl::StrFormat("%.4g", largest_->values.max_abs), ", in ",
                                    Quote(largest_->name));
    if (nan_mismatches_ > 0) absl::StrAppend(&text, "; NaN on one side in ", nan_mismatches_);
    return text;
  }

  const DiffReport& report_;
  DiffSummary summary_;
  int64_t shapes_ = 0;  // tensors
  std::map<std::pair<DType, DType>, int64_t> dtypes_;
  ValueDifference rounding_;    // of tensors of which only the dtype differs
  bool has_tolerated_ = false;  // one of another dtype whose values are within the tolerance, and no rounding
  int64_t values_ = 0;          // tensors
  int64_t nan_mismatches_ = 0;
  const TensorDiff* largest_ = nullptr;
};

}  // namespace

DiffSummary SummariseDiff(const DiffReport& report) { return Summary(report).Make(); }

// A model under another prefix was compared name by name already, so its names are not missing.
OneSidedNames NamesOfOneSide(const DiffReport& report) {
  const RenamedTensors& renamed = report.renamed;
  return {WithoutRenamed(report.only_in_a, renamed.prefix_a, report.only_in_b, renamed.prefix_b),
          WithoutRenamed(report.only_in_b, renamed.prefix_b, report.only_in_a, renamed.prefix_a)};
}

// NaN on one side is larger than any number.
std::vector<const TensorDiff*> LargestDifferences(const DiffReport& report, size_t count) {
  std::vector<const TensorDiff*> changed;
  for (const auto* tensors : {&report.tensors, &report.renamed.tensors}) {
    for (const TensorDiff& tensor : *tensors) {
      if (tensor.values.changed > 0) changed.push_back(&tensor);
    }
  }
  std::stable_sort(changed.begin(), changed.end(), [](const TensorDiff* a, const TensorDiff* b) {
    const bool nan_a = a->values.nan_mismatches > 0;
    const bool nan_b = b->values.nan_mismatches > 0;
    return nan_a != nan_b ? nan_a : a->values.max_abs > b->values.max_abs;
  });
  changed.resize(std::min(count, changed.size()));
  return changed;
}

}  // namespace fsdp
