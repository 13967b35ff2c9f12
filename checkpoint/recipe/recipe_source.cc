// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/recipe/recipe_source.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/recipe/arranged_tensor.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"

namespace fsdp {
namespace {

void AddNames(const RecipeExpression& expression, std::set<std::string>& names) {
  if (expression.op == RecipeOp::kSource) names.insert(expression.name);
  for (const RecipeExpression& input : expression.inputs) AddNames(input, names);
}

class RecipeSource final : public TensorSource, public CoveringChecksums {
 public:
  explicit RecipeSource(std::unique_ptr<TensorSource> source)
      : source_(std::move(source)), layout_(source_->layout()) {}

  absl::Status Make(const Recipe& recipe) {
    constexpr size_t kMostNamed = 20;
    std::vector<std::string> misfits;
    for (const auto& [name, expression] : recipe.targets) {
      const absl::Status status = Add(name, expression);
      if (!status.ok()) misfits.push_back(absl::StrCat(Quote(name), ": ", status.message()));
    }
    if (misfits.empty()) {
      NameUnused(recipe);
      return absl::OkStatus();
    }
    const size_t more = misfits.size() - std::min(misfits.size(), kMostNamed);
    misfits.resize(misfits.size() - more);
    return absl::InvalidArgumentError(absl::StrCat(misfits.size() + more, " of ", recipe.targets.size(),
                                                   " targets of the recipe do not fit: ", absl::StrJoin(misfits, "; "),
                                                   more == 0 ? "" : absl::StrCat("; and ", more, " more")));
  }

  const FormatTraits& traits() const override { return source_->traits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return source_->step(); }
  int world_size() const override { return source_->world_size(); }
  const std::map<std::string, std::string>& metadata() const override { return source_->metadata(); }
  std::vector<std::string> files() const override { return source_->files(); }
  std::vector<std::string> left_out() const override { return source_->left_out(); }
  bool has_checksums() const override { return source_->has_checksums(); }
  const CoveringChecksums* covering_checksums() const override { return this; }

  absl::Status VerifyRest() const override { return fsdp::VerifyRest(*source_); }

  // Of the source, and of what is made of it.
  absl::StatusOr<std::string> Identity() const override {
    FSDP_ASSIGN_OR_RETURN(const std::string identity, source_->Identity());
    std::string text;
    for (const auto& [key, value] : contents_.entries()) {
      const auto& tensor = std::get<ShardedTensor>(value);
      absl::StrAppend(&text, key.ToString(), " ", std::string(DTypeName(tensor.dtype)), " ", tensor.shape.ToString(),
                      "\n");
    }
    return absl::StrCat(identity, " with a recipe of targets ", DigestOf(text).ToHex());
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const auto at = tensors_.find(key);
    if (at == tensors_.end()) return absl::NotFoundError(absl::StrCat("the recipe makes no ", Describe(key)));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, at->second->shape.numel()));
    if (interval.empty()) return absl::OkStatus();
    const absl::Status status = at->second->Read(interval, static_cast<std::byte*>(out));
    return status.ok() ? status : Annotate(status, Describe(key));
  }

 private:
  absl::Status Add(const std::string& name, const RecipeExpression& expression) {
    const StateKey key = StateKey::Model(name);
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ArrangedTensor> tensor, Arrange(expression, *source_));
    ShardedTensor described;
    described.dtype = tensor->dtype;
    described.shape = tensor->shape;
    contents_.Set(key, std::move(described));
    tensors_[key] = std::move(tensor);
    return absl::OkStatus();
  }

  // A shared tensor is used if one of its names is.
  void NameUnused(const Recipe& recipe) {
    std::set<std::string> used;
    for (const auto& [name, expression] : recipe.targets) AddNames(expression, used);
    for (const auto& [alias, name] : source_->contents().aliases) {
      if (used.count(alias) != 0) used.insert(name);
    }
    std::vector<std::string> unused;
    int64_t others = 0;
    for (const auto& [key, value] : source_->contents().entries()) {
      if (key.section != StateKey::Section::kModel) {
        ++others;
      } else if (used.count(key.fqn) == 0) {
        unused.push_back(key.fqn);
      }
    }
    if (!unused.empty()) {
      layout_.notes.push_back(absl::StrCat("the recipe does not use ", unused.size(),
                                           unused.size() == 1 ? " tensor: " : " tensors: ", SomeOf(unused)));
    }
    if (others > 0) layout_.notes.push_back(absl::StrCat(others, " other values are left out: a recipe makes a model"));
  }

  const std::unique_ptr<TensorSource> source_;
  std::map<StateKey, std::unique_ptr<ArrangedTensor>> tensors_;
  StateDict contents_;
  SourceLayout layout_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> ApplyRecipe(std::unique_ptr<TensorSource> source, const Recipe& recipe) {
  auto made = std::make_unique<RecipeSource>(std::move(source));
  FSDP_RETURN_IF_ERROR(made->Make(recipe));
  return made;
}

}  // namespace fsdp
