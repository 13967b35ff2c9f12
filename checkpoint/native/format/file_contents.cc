// SPDX-License-Identifier: Apache-2.0
//
// The manifest maps tensors to bytes of files; this is the inverse, as a sorted list of parts for each file. Parts of
// one file are disjoint, so those that meet a range are found by bisection and then follow each other.
#include "fsdp/checkpoint/native/format/file_contents.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// Names that a message lists: more than a transformer block has parameters, which may all share one block of a flat
// shard.
constexpr size_t kListedNames = 16;

ByteRange Overlap(const ByteRange& a, const ByteRange& b) {
  const int64_t begin = std::max(a.offset, b.offset);
  return {begin, std::max<int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

}  // namespace

FileContents::FileContents(const Manifest& manifest) : FileContents(manifest, &manifest.parity) {}

FileContents::FileContents(const FileRecord& record) : FileContents(record, nullptr) {}

FileContents::FileContents(const StoredValues& values, const StoredParity* parity)
    : values_(values), parity_(parity), parts_(values.files.size()) {
  for (size_t i = 0; i < values.tensors.size(); ++i) {
    const StoredTensor& tensor = values.tensors[i];
    for (const StoredInterval& stored : tensor.intervals) {
      const ByteRange range = {stored.offset, stored.interval.size() * SizeOf(tensor.dtype)};
      parts_[stored.file].push_back({.range = range, .index = static_cast<int32_t>(i)});
    }
  }
  for (size_t i = 0; i < values.texts.size(); ++i) {
    parts_[values.texts[i].file].push_back(
        {.range = values.texts[i].range, .is_text = true, .index = static_cast<int32_t>(i)});
  }
  for (std::vector<Part>& parts : parts_) {
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.range.offset < b.range.offset; });
  }
}

void FileContents::VisitTensors(int file, const ByteRange& range,
                                absl::FunctionRef<void(int tensor, const ByteRange& part)> visit) const {
  const std::vector<Part>& parts = parts_[file];
  auto part = std::partition_point(parts.begin(), parts.end(),
                                   [&](const Part& other) { return other.range.end() <= range.offset; });
  for (; part != parts.end() && part->range.offset < range.end(); ++part) {
    const ByteRange overlap = Overlap(part->range, range);
    if (!part->is_text && overlap.nbytes > 0) visit(part->index, overlap);
  }
}

std::string FileContents::NameOf(int file, const ByteRange& range) const {
  // A record is one range of its file, and no tensor or text overlaps it.
  const auto& record = values_.files[file].record;
  if (record && Overlap(*record, range).nbytes > 0) return "record";
  std::vector<std::string> names;
  VisitTensors(file, range,
               [&](int tensor, const ByteRange&) { names.push_back(Quote(values_.tensors[tensor].key.ToString())); });
  if (names.empty()) {
    for (const Part& part : parts_[file]) {
      if (!part.is_text || Overlap(part.range, range).nbytes == 0) continue;
      return absl::StrCat("text ", Quote(values_.texts[part.index].key.ToString()));
    }
    const bool is_parity =
        parity_ != nullptr && std::find(parity_->files.begin(), parity_->files.end(), file) != parity_->files.end();
    return is_parity ? "parity" : "";
  }
  std::string text = absl::StrCat(names.size() == 1 ? "tensor " : "tensors ", names[0]);
  for (size_t i = 1; i < std::min(kListedNames, names.size()); ++i) absl::StrAppend(&text, ", ", names[i]);
  if (names.size() <= kListedNames) return text;
  return absl::StrCat(text, " and ", names.size() - kListedNames, " more");
}

}  // namespace fsdp
