// SPDX-License-Identifier: Apache-2.0
//
// Merging turns the description that each rank has of its file into a description of each tensor. A rank file names
// every tensor of its rank's state, even tensors of which it has no element, so ranks that disagree about a shape are
// found even if their intervals do not overlap.
#include "fsdp/checkpoint/native/format/manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

// Dtype and shape come from the model's code on each rank, so a difference means that ranks ran different models.
absl::Status CheckAgree(const StoredTensor& a, const StoredTensor& b, int b_rank) {
  if (a.dtype == b.dtype && a.shape == b.shape) return absl::OkStatus();
  const auto form = [](const StoredTensor& t) {
    return absl::StrCat(std::string(DTypeName(t.dtype)), " ", t.shape.ToString());
  };
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(a.key), ": ", form(b), " on rank ", b_rank, " != ", form(a), " on a rank before it"));
}

}  // namespace

std::string Describe(const ByteRange& range) { return absl::StrCat("bytes ", range.offset, " to ", range.end() - 1); }

std::string DamagedBlock(const std::string& file, const ByteRange& range, const std::string& what, const Digest& actual,
                         const Digest& recorded) {
  return absl::StrCat(file, ", ", Describe(range), " (", what, "): digest ", actual.ToHex(), " != recorded ",
                      recorded.ToHex());
}

ByteRange StoredExtent::block(int64_t index) const {
  const int64_t begin = range.offset + index * block_bytes;
  return {begin, std::min(block_bytes, range.end() - begin)};
}

StoredExtent NewPayloadExtent(const ByteRange& range) {
  StoredExtent extent = {range, {}};
  const int64_t block_bytes = range.nbytes > kShortExtentBytes ? kDigestBlockBytes : kShortDigestBlockBytes;
  // An extent of one block has the same digest with any size; it keeps the size that the encoding leaves out.
  if (range.nbytes > block_bytes) extent.block_bytes = block_bytes;
  extent.digests.resize(extent.blocks());
  return extent;
}

bool IsDigestBlock(int64_t nbytes) {
  constexpr int64_t kLeast = int64_t{64} << 10;
  return nbytes >= kLeast && nbytes <= kBlockBytes && (nbytes & (nbytes - 1)) == 0;
}

std::string SaveIdentity::StepText() const { return has_step ? absl::StrCat("step ", step) : "an unknown step"; }

const StoredExtent* ExtentAt(const StoredFile& file, int64_t offset) {
  // The last extent that begins at or before `offset` is the only one that can hold it, since extents are disjoint.
  const auto after = std::upper_bound(file.extents.begin(), file.extents.end(), offset,
                                      [](int64_t at, const StoredExtent& extent) { return at < extent.range.offset; });
  if (after == file.extents.begin() || std::prev(after)->range.end() <= offset) return nullptr;
  return &*std::prev(after);
}

void InsertExtent(StoredExtent extent, StoredFile& file) {
  const auto after =
      std::upper_bound(file.extents.begin(), file.extents.end(), extent.range.offset,
                       [](int64_t offset, const StoredExtent& other) { return offset < other.range.offset; });
  file.extents.insert(after, std::move(extent));
}

std::vector<ByteRange> RangesBetween(const std::vector<ByteRange>& taken, int64_t nbytes) {
  std::vector<ByteRange> between;
  int64_t end = 0;
  for (const ByteRange& range : taken) {
    if (range.offset > end) between.push_back({end, range.offset - end});
    end = range.end();
  }
  if (nbytes > end) between.push_back({end, nbytes - end});
  return between;
}

absl::Status CheckCovered(const StoredTensor& tensor) {
  // The common case, intervals in order without gaps, is checked without a copy: a checkpoint of many ranks has
  // millions of intervals. CheckCover handles the other cases and describes the error.
  int64_t covered = 0;
  bool is_run = true;
  for (const StoredInterval& stored : tensor.intervals) {
    is_run = is_run && (stored.interval.begin == covered || stored.interval.empty());
    covered = std::max(covered, stored.interval.end);
  }
  if (is_run && covered == tensor.shape.numel()) return absl::OkStatus();
  std::vector<Interval> intervals;
  for (const StoredInterval& stored : tensor.intervals) intervals.push_back(stored.interval);
  const absl::Status status = CheckCover(std::move(intervals), tensor.shape.numel());
  return status.ok() ? status : absl::DataLossError(absl::StrCat(Describe(tensor.key), ": ", status.message()));
}

absl::StatusOr<StoredValues> MergeRecords(const std::vector<FileRecord>& records) {
  StoredValues whole;
  std::map<StateKey, size_t> index;  // into whole.tensors
  for (const FileRecord& record : records) {
    const int first_file = static_cast<int>(whole.files.size());
    whole.files.insert(whole.files.end(), record.files.begin(), record.files.end());
    for (const StoredTensor& tensor : record.tensors) {
      // The first record that names a tensor gives its dtype, shape and aliases; the others only add intervals.
      const auto [it, is_new] = index.try_emplace(tensor.key, whole.tensors.size());
      if (is_new) {
        whole.tensors.push_back(tensor);
        whole.tensors.back().intervals.clear();
      }
      StoredTensor& merged = whole.tensors[it->second];
      FSDP_RETURN_IF_ERROR(CheckAgree(merged, tensor, record.rank));
      // Indices of files were the record's own; in the result the files of all records follow each other.
      for (StoredInterval interval : tensor.intervals) {
        interval.file += first_file;
        merged.intervals.push_back(interval);
      }
    }
  }
  for (StoredTensor& tensor : whole.tensors) {
    std::sort(tensor.intervals.begin(), tensor.intervals.end(),
              [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
  }
  return whole;
}

}  // namespace fsdp
