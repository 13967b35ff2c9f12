// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/verify/range_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/record.h"

namespace fsdp {

std::string RangeNames::NameOf(int file, const ByteRange& range) {
  std::string name = contents_.NameOf(file, range);
  if (!name.empty()) return name;
  const Recorded* const recorded = RecordOf(file);
  if (recorded != nullptr) name = recorded->contents.NameOf(0, range);
  const StoredFile& stored = manifest_.files[file];
  if (stored.origin) {
    return absl::StrCat(name.empty() ? "payload" : name, " of step ", stored.origin->step, ", unused here");
  }
  // In a rank file, only the copies of texts are unknown to the manifest.
  return stored.record ? absl::StrCat("copy of ", name.empty() ? "a text" : name) : "payload";
}

const RangeNames::Recorded* RangeNames::RecordOf(int file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [found, is_new] = recorded_.try_emplace(file);
  // A null entry is kept too, so that a damaged record is read once and not for each damaged block.
  if (!is_new) return found->second.get();
  const StoredFile& stored = manifest_.files[file];
  const auto extent = std::find_if(stored.extents.begin(), stored.extents.end(),
                                   [&](const StoredExtent& other) { return other.range == stored.record; });
  if (extent == stored.extents.end()) return nullptr;
  const absl::StatusOr<std::unique_ptr<File>> opened = OpenCheckpointFile(files_, directory_, stored.name);
  if (!opened.ok()) return nullptr;
  // A file that was truncated behind its record still contains the record, so ReadRecord gets the actual size.
  const int64_t size = (*opened)->Size().value_or(stored.nbytes);
  absl::StatusOr<FileRecord> record = ReadRecord(files_, directory_, {stored.name, size, *extent, {}});
  if (record.ok()) found->second = std::make_unique<Recorded>(*std::move(record));
  return found->second.get();
}

}  // namespace fsdp
