// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/peft/merged_source.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/peft/low_rank.h"
#include "fsdp/checkpoint/foreign/peft/merge_plan.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// All that decides how two pairs of equal files are merged.
std::string TextOf(const std::map<StateKey, TensorChange>& changes) {
  std::string text;
  for (const auto& [key, change] : changes) {
    absl::StrAppend(&text, key.ToString());
    if (change.whole) absl::StrAppend(&text, "\twhole ", change.whole->ToString());
    if (const std::optional<LowRank>& low_rank = change.low_rank) {
      absl::StrAppend(&text, "\ta ", low_rank->a.ToString(), "\tb ", low_rank->b.ToString(),
                      absl::StrFormat("\t%a", low_rank->scale), low_rank->is_transposed ? "\ttransposed" : "");
    }
    if (change.added)
      absl::StrAppend(&text, "\tadded ", change.added->ToString(), absl::StrFormat("\t%a", change.scale));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// The merged model as a source: every reader and writer works on it, and nothing is stored in between. A change is
// applied to each interval as it is read.
class MergedSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  MergedSource(std::unique_ptr<TensorSource> base, std::unique_ptr<TensorSource> adapter, MergePlan plan)
      : base_(std::move(base)),
        adapter_(std::move(adapter)),
        plan_(std::move(plan)),
        contents_(base_->contents()),
        layout_(base_->layout()) {
    for (const StateKey& key : plan_.new_keys) {
      const ShardedTensor& tensor = *adapter_->contents().FindTensor(*plan_.changes.at(key).whole);
      ShardedTensor added;
      added.dtype = tensor.dtype;
      added.shape = tensor.shape;
      contents_.Set(key, std::move(added));
    }
    layout_.notes.insert(layout_.notes.end(), plan_.notes.begin(), plan_.notes.end());
  }

  const FormatTraits& traits() const override { return base_->traits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return base_->step(); }
  int world_size() const override { return base_->world_size(); }
  const std::map<std::string, std::string>& metadata() const override { return base_->metadata(); }
  bool has_checksums() const override { return base_->has_checksums(); }
  std::vector<std::string> left_out() const override { return base_->left_out(); }
  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }

  std::vector<std::string> files() const override {
    std::vector<std::string> files = base_->files();
    for (std::string& file : adapter_->files()) files.push_back(std::move(file));
    return files;
  }

  // Of both, and of what the adapter's config, which is in neither, makes of them.
  absl::StatusOr<std::string> Identity() const override {
    FSDP_ASSIGN_OR_RETURN(const std::string base, base_->Identity());
    FSDP_ASSIGN_OR_RETURN(const std::string adapter, adapter_->Identity());
    return absl::StrCat(base, " with the adapter ", adapter, ", changes of digest ",
                        DigestOf(TextOf(plan_.changes)).ToHex());
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TensorChange* const change = ChangeOf(key);
    if (change == nullptr) return base_->Read(key, interval, out);
    const ShardedTensor& tensor = *contents_.FindTensor(key);
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor.shape.numel()));
    auto* const bytes = static_cast<std::byte*>(out);
    FSDP_RETURN_IF_ERROR(change->whole ? ReadWhole(*change->whole, interval, tensor.dtype, bytes)
                                       : base_->Read(key, interval, out));
    if (change->low_rank) {
      FSDP_RETURN_IF_ERROR(AddLowRank(*adapter_, *change->low_rank, interval, tensor.dtype, bytes));
    }
    if (!change->added) return absl::OkStatus();
    return AddScaled(*adapter_, *change->added, change->scale, interval, tensor.dtype, bytes);
  }

  std::vector<Interval> Pieces(const StateKey& key, const Interval& interval) const override {
    const TensorChange* const change = ChangeOf(key);
    return change != nullptr && change->whole ? adapter_->Pieces(*change->whole, interval)
                                              : base_->Pieces(key, interval);
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    return ChangeOf(key) == nullptr ? base_->Places(key) : TensorSource::Places(key);
  }

  // Elements that a changed tensor shows more than once it also has more than once. Storages of the two are not the
  // same.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const TensorChange* const change = ChangeOf(key);
    if (change == nullptr) return StorageOf(*base_, key);
    std::optional<TensorStorage> storage =
        change->whole ? StorageOf(*adapter_, *change->whole) : StorageOf(*base_, key);
    if (!storage) return storage;
    storage->distinct_numel = 0;
    if (change->whole) storage->id = -1 - storage->id;
    return storage;
  }

  absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const override {
    if (ChangeOf(key) == nullptr && base_->views() != nullptr) return base_->views()->ReadDistinct(key, interval, out);
    return absl::UnimplementedError("the elements of a merged tensor are no file's");
  }

  absl::Status VerifyRest() const override { return fsdp::VerifyRest(*base_); }

 private:
  // Null for a tensor that stays as it is in the base.
  const TensorChange* ChangeOf(const StateKey& key) const {
    const auto at = plan_.changes.find(key);
    return at == plan_.changes.end() ? nullptr : &at->second;
  }

  absl::Status ReadWhole(const StateKey& key, const Interval& interval, DType to, std::byte* out) const {
    const DType from = adapter_->contents().FindTensor(key)->dtype;
    if (from == to) return adapter_->Read(key, interval, out);
    constexpr int64_t kElements = int64_t{1} << 17;  // that are in memory
    std::vector<std::byte> scratch(std::min(kElements, interval.size()) * SizeOf(from));
    for (int64_t begin = interval.begin; begin < interval.end; begin += kElements) {
      const Interval part = {begin, std::min(begin + kElements, interval.end)};
      FSDP_RETURN_IF_ERROR(adapter_->Read(key, part, scratch.data()));
      std::byte* const at = out + (begin - interval.begin) * SizeOf(to);
      FSDP_RETURN_IF_ERROR(Convert(from, scratch.data(), to, at, part.size()));
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<TensorSource> base_;
  const std::unique_ptr<TensorSource> adapter_;
  const MergePlan plan_;
  StateDict contents_;
  SourceLayout layout_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> MergeAdapter(std::unique_ptr<TensorSource> base,
                                                           std::unique_ptr<TensorSource> adapter,
                                                           const AdapterConfig& config) {
  FSDP_ASSIGN_OR_RETURN(MergePlan plan, PlanMerge(base->contents(), adapter->contents(), config));
  FSDP_RETURN_IF_ERROR(VerifyRest(*adapter));
  return std::make_unique<MergedSource>(std::move(base), std::move(adapter), std::move(plan));
}

}  // namespace fsdp
