// SPDX-License-Identifier: Apache-2.0
//
// Each task reads one piece of one tensor from all sources in turn and keeps the piece of the source before. The order
// in which pieces are added depends on timing, and so do the last digits of the sums.
#include "fsdp/tools/inspect/step_group.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <variant>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

constexpr int64_t kTile = 1024;

// Elements of one tensor in memory.
struct Values {
  DType dtype = DType::kFloat32;
  std::vector<std::byte> bytes;
  bool is_there = false;
};

// Integers have no norm that means something.
bool IsMeasured(DType dtype) { return IsFloatingPoint(PartOf(dtype)); }

// The numbers of an element: a complex one has two.
int64_t NumbersOf(DType dtype) { return IsComplex(dtype) || IsPacked(dtype) ? 2 : 1; }

// Elements [at, at + count) of `values` as float64, NumbersOf each.
absl::Status ToNumbers(const Values& values, int64_t at, int64_t count, double* numbers) {
  const std::byte* data = values.bytes.data() + at * SizeOf(values.dtype);
  if (IsPacked(values.dtype)) {
    UnpackFloats(values.dtype, data, numbers, count);
    return absl::OkStatus();
  }
  return Convert(PartOf(values.dtype), data, DType::kFloat64, numbers, count * NumbersOf(values.dtype));
}

void AddNumbers(const double* numbers, int64_t count, LayerAtStep& sums) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(numbers[i])) {
      sums.squares += numbers[i] * numbers[i];
    } else {
      ++(std::isnan(numbers[i]) ? sums.nonfinite.nan : sums.nonfinite.inf);
    }
  }
}

void AddChanges(const double* before, const double* numbers, int64_t count, LayerAtStep& sums) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(before[i]) || !std::isfinite(numbers[i])) continue;
    sums.squares_before += before[i] * before[i];
    sums.squares_changed += (numbers[i] - before[i]) * (numbers[i] - before[i]);
  }
}

// Adds `numel` elements, and their changes if `before` is there and has as many numbers.
absl::Status AddValues(const Values& values, const Values& before, int64_t numel, LayerAtStep& sums) {
  const int64_t width = NumbersOf(values.dtype);
  const bool compares = before.is_there && NumbersOf(before.dtype) == width;
  double numbers[kTile];
  double numbers_before[kTile];
  sums.numel += numel;
  sums.has_change = compares;
  for (int64_t at = 0; at < numel; at += kTile / width) {
    const int64_t count = std::min(kTile / width, numel - at);
    FSDP_RETURN_IF_ERROR(ToNumbers(values, at, count, numbers));
    AddNumbers(numbers, count * width, sums);
    if (!compares) continue;
    FSDP_RETURN_IF_ERROR(ToNumbers(before, at, count, numbers_before));
    AddChanges(numbers_before, numbers, count * width, sums);
  }
  return absl::OkStatus();
}

}  // namespace

void StepGroup::Add(std::unique_ptr<TensorSource> source, bool is_counted) {
  Source& added = sources_.emplace_back();
  added.source = std::move(source);
  added.is_counted = is_counted;
  added.layers.resize(layers_);
}

std::vector<StepGroup::SameTensors> StepGroup::FindTensors() const {
  // By key, then by shape: a tensor whose shape changes is not comparable.
  std::map<StateKey, std::vector<SameTensors>> found;
  for (size_t i = 0; i < sources_.size(); ++i) {
    for (const auto& [key, value] : sources_[i].source->contents().entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      std::vector<SameTensors>& shapes = found[key];
      auto same = std::find_if(shapes.begin(), shapes.end(),
                               [&](const SameTensors& other) { return other.shape == tensor->shape; });
      if (same == shapes.end()) same = shapes.insert(same, {key, tensor->shape, {}});
      same->sources.push_back(i);
    }
  }
  std::vector<SameTensors> all;
  for (auto& [key, shapes] : found) std::move(shapes.begin(), shapes.end(), std::back_inserter(all));
  return all;
}

// Cut at the blocks of the first source: the checkpoints of one run most often have the same ones.
std::vector<StepGroup::Piece> StepGroup::CutPieces(const std::vector<SameTensors>& all) const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < all.size(); ++i) {
    int64_t size = 1;
    for (const size_t source : all[i].sources) size = std::max(size, SizeOf(DTypeIn(source, all[i].key)));
    const int64_t most = kPieceBytes / size;
    const TensorSource& first = *sources_[all[i].sources.front()].source;
    for (const Interval& interval : first.Pieces(all[i].key, {0, all[i].shape.numel()})) {
      for (int64_t begin = interval.begin; begin < interval.end; begin += most) {
        pieces.push_back({i, {begin, std::min(begin + most, interval.end)}});
      }
    }
  }
  return pieces;
}

DType StepGroup::DTypeIn(size_t source, const StateKey& key) const {
  return sources_[source].source->contents().FindTensor(key)->dtype;
}

absl::Status StepGroup::ReadPiece(const SameTensors& tensors, size_t number, const Interval& interval,
                                  const std::function<void(int64_t)>& progress) {
  Values before;
  size_t before_source = 0;
  for (const size_t i : tensors.sources) {
    Values values = {.dtype = DTypeIn(i, tensors.key), .bytes = {}, .is_there = true};
    values.bytes.resize(interval.size() * SizeOf(values.dtype));
    const absl::Status read = sources_[i].source->Read(tensors.key, interval, values.bytes.data());
    if (absl::IsResourceExhausted(read)) return read;
    if (!read.ok()) {
      Fail(i, number, read);
      before.is_there = false;
      continue;
    }
    const bool is_next = before.is_there && before_source + 1 == i && tensors.key.section == Section::kModel;
    LayerAtStep sums;
    if (IsMeasured(values.dtype)) {
      FSDP_RETURN_IF_ERROR(AddValues(values, is_next ? before : Values(), interval.size(), sums));
    }
    Deliver(i, tensors.key, sums, std::ssize(values.bytes), progress);
    before = std::move(values);
    before_source = i;
  }
  return absl::OkStatus();
}

void StepGroup::Deliver(size_t source, const StateKey& key, const LayerAtStep& sums, int64_t nbytes,
                        const std::function<void(int64_t)>& progress) {
  if (!sources_[source].is_counted) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  progress(nbytes);
  // A step that is being saved again may have other layers than when the index was made.
  if (key.section == Section::kExtra || !index_.Has(key.fqn)) return;
  LayerAtStep& layer = sources_[source].layers[index_.RowOf(key.fqn)];
  // Moments have another scale than the model, so only what is not finite of them counts.
  key.section == Section::kModel ? layer.Add(sums) : layer.nonfinite.Add(sums.nonfinite);
}

// Keeps the error of the first piece, whatever the timing.
void StepGroup::Fail(size_t source, size_t piece, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Source& failed = sources_[source];
  if (!failed.status.ok() && failed.failed_piece <= piece) return;
  failed.status = status;
  failed.failed_piece = piece;
}

absl::Status StepGroup::Read(ThreadPool& pool, const std::function<void(int64_t)>& progress) {
  const std::vector<SameTensors> all = FindTensors();
  const std::vector<Piece> pieces = CutPieces(all);
  return pool.ParallelFor(std::ssize(pieces), [&](int64_t i) {
    return ReadPiece(all[pieces[i].tensors], i, pieces[i].interval, progress);
  });
}

}  // namespace fsdp
