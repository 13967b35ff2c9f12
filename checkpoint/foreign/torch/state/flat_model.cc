// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/flat_model.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {
namespace {

absl::Status LayoutWanted(const std::string& name) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quote(name), " is a flat parameter of FSDP1, which does not record where its parameters are; ",
                   kGiveFlatLayout, "; or save a FULL or SHARDED state dict, under their own names"));
}

// `status`: the layout, from a file or from the model that is being filled, does not fit the flat parameters.
absl::Status OtherLayoutWanted(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(std::string(status.message()), "; ", kGiveFlatLayout));
}

class FlatModel {
 public:
  FlatModel(const std::vector<FlatTensor>& flats, const TorchLeafTypes& tensors, const TorchStateOptions& options,
            TorchState& state)
      : flats_(flats), tensors_(tensors), options_(options), state_(state) {}

  absl::Status Replace() {
    if (options_.flat.layout == nullptr) return LayoutWanted(flats_[0].first);
    std::vector<std::string> names;
    for (const auto& [name, index] : flats_) names.push_back(UnitOfFlatName(name));
    absl::StatusOr<std::vector<FlatUnit>> units = DivideIntoUnits(options_.flat.layout->parameters, names);
    if (!units.ok()) return OtherLayoutWanted(units.status());
    for (size_t i = 0; i < units->size(); ++i) {
      const int64_t numel = tensors_[flats_[i].second].shape.numel();
      const absl::Status placed = PlaceParts(numel, options_.flat.world_size, (*units)[i]);
      if (!placed.ok()) return OtherLayoutWanted(placed);
    }
    FSDP_RETURN_IF_ERROR(RemoveSlices(*units));
    for (size_t i = 0; i < units->size(); ++i) {
      for (const FlatUnit::Part& part : (*units)[i].parts) {
        state_.Set(StateKey::Model(part.fqn), tensors_[flats_[i].second].dtype, part.shape,
                   {TorchTensorPart{.tensor = flats_[i].second, .offset = part.offset}});
      }
    }
    return absl::OkStatus();
  }

 private:
  // With use_orig_params DCP also stores some rank's slice of each parameter, under the parameter's name. These slices
  // are removed: the flat parameters have all elements. A shared parameter has a slice under each of its names, and the
  // layout lists only the first, so a slice under another name is found by its elements and becomes an alias.
  absl::Status RemoveSlices(const std::vector<FlatUnit>& units) {
    std::set<std::string> parameters;
    bool has_slices = false;
    for (const FlatLayout::Parameter& parameter : options_.flat.layout->parameters) {
      parameters.insert(parameter.fqn);
      has_slices = has_slices || state_.contents.contains(StateKey::Model(parameter.fqn));
    }
    if (!has_slices) return absl::OkStatus();
    StateDict kept;
    std::vector<TorchLeaf> kept_leaves;
    kept.aliases = state_.contents.aliases;
    state_.leaves.resize(state_.contents.entries().size());
    for (size_t i = 0; i < state_.leaves.size(); ++i) {
      const auto& [key, value] = state_.contents.entries()[i];
      bool is_kept = key.section != StateKey::Section::kModel || !std::holds_alternative<ShardedTensor>(value);
      if (!is_kept && parameters.count(key.fqn) == 0) {
        FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> shared,
                              SharedWith(state_.leaves[i].tensor_part()->tensor, units));
        if (shared.has_value() && !shared->empty()) kept.aliases[key.fqn] = *shared;
        is_kept = !shared.has_value();
      }
      if (!is_kept) continue;
      kept.Set(key, value);
      kept_leaves.push_back(state_.leaves[i]);
    }
    state_.contents = std::move(kept);
    state_.leaves = std::move(kept_leaves);
    return absl::OkStatus();
  }

  // The parameter that shares its elements with `tensor`, found by comparing them with each rank's slice of each
  // parameter; "" if `tensor` has no elements (ambiguous); nullopt if it is a buffer: no parameter has its elements, or
  // several do.
  absl::StatusOr<std::optional<std::string>> SharedWith(int tensor, const std::vector<FlatUnit>& units) const {
    const TorchLeafType type = tensors_[tensor];
    std::optional<std::string> found;
    if (type.shape.rank() != 1 || options_.read == nullptr) return found;
    if (type.shape.numel() == 0) return std::make_optional<std::string>();
    for (size_t i = 0; i < units.size(); ++i) {
      if (tensors_[flats_[i].second].dtype != type.dtype) continue;
      for (const FlatUnit::Part& part : units[i].parts) {
        FSDP_ASSIGN_OR_RETURN(const bool is_slice, IsSliceOf(part, flats_[i].second, tensor));
        if (!is_slice) continue;
        if (found.has_value()) return std::optional<std::string>();
        found = part.fqn;
      }
    }
    return found;
  }

  // True if `tensor` has the elements of some rank's slice of `part`. FSDP1 cuts a flat parameter into equal shards, so
  // the candidates are the parts of `part` in each shard; sizes rule out most of them before anything is read.
  absl::StatusOr<bool> IsSliceOf(const FlatUnit::Part& part, int flat, int tensor) const {
    if (part.shape.numel() == 0) return false;
    const int64_t ranks = options_.flat.world_size;
    const int64_t shard_numel = (tensors_[flat].shape.numel() + ranks - 1) / ranks;
    const Interval whole = {part.offset, part.offset + part.shape.numel()};
    for (int64_t rank = whole.begin / shard_numel; rank * shard_numel < whole.end; ++rank) {
      const Interval slice = Intersect(whole, {rank * shard_numel, (rank + 1) * shard_numel});
      if (slice.size() != tensors_[tensor].shape.numel()) continue;
      FSDP_ASSIGN_OR_RETURN(const bool is_equal, IsPartOf(flat, slice, tensor));
      if (is_equal) return true;
    }
    return false;
  }

  absl::StatusOr<bool> IsPartOf(int flat, const Interval& slice, int tensor) const {
    constexpr int64_t kElements = int64_t{1} << 20;  // bounds the memory of a comparison
    const DType dtype = tensors_[tensor].dtype;
    for (int64_t begin = slice.begin; begin < slice.end; begin += kElements) {
      const int64_t end = std::min(begin + kElements, slice.end);
      FSDP_ASSIGN_OR_RETURN(const std::string expected, ReadBytes(options_.read, flat, dtype, {begin, end}));
      FSDP_ASSIGN_OR_RETURN(const std::string actual,
                            ReadBytes(options_.read, tensor, dtype, {begin - slice.begin, end - slice.begin}));
      if (expected != actual) return false;
    }
    return true;
  }

  const std::vector<FlatTensor>& flats_;
  const TorchLeafTypes& tensors_;
  const TorchStateOptions& options_;
  TorchState& state_;
};

}  // namespace

absl::Status ReplaceFlatParameters(const std::vector<FlatTensor>& flats, const TorchLeafTypes& tensors,
                                   const TorchStateOptions& options, TorchState& state) {
  if (flats.empty()) return absl::OkStatus();
  return FlatModel(flats, tensors, options, state).Replace();
}

}  // namespace fsdp
