// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/zip/entry_checksums.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/torch/zip/crc32.h"

namespace fsdp {

void EntryChecksums::Expect(const std::string& name, const Interval& range, uint32_t crc) {
  if (range.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.try_emplace(range.begin, Entry{name, range, crc});
}

bool EntryChecksums::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.empty();
}

absl::Status EntryChecksums::Add(int64_t offset, absl::Span<const std::byte> bytes) {
  const Interval read = {offset, offset + static_cast<int64_t>(bytes.size())};
  int64_t at = read.begin;
  while (at < read.end) {
    Entry* entry = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto after = entries_.upper_bound(at);
      if (after != entries_.begin() && std::prev(after)->second.range.end > at) --after;
      if (after == entries_.end() || after->second.range.begin >= read.end) return absl::OkStatus();
      entry = &after->second;  // entries stay where they are
      at = std::min(entry->range.end, read.end);
      if (entry->is_whole) {
        FSDP_RETURN_IF_ERROR(entry->result);
        continue;
      }
    }
    const Interval part = Intersect(entry->range, read);
    const uint32_t crc = Crc32(bytes.subspan(part.begin - offset, part.size()));
    const std::lock_guard<std::mutex> lock(mutex_);
    FSDP_RETURN_IF_ERROR(AddRun(*entry, part, crc));
  }
  return absl::OkStatus();
}

absl::Status EntryChecksums::AddRun(Entry& entry, const Interval& range, uint32_t crc) {
  Interval whole = range;
  auto after = entry.runs.lower_bound(range.begin);
  if (after != entry.runs.end() && after->first < range.end) return entry.result;  // some of it was read before
  if (after != entry.runs.begin()) {
    const auto before = std::prev(after);
    if (before->second.end > range.begin) return entry.result;
    if (before->second.end == range.begin) {
      crc = CombineCrc32(before->second.crc, crc, range.size());
      whole.begin = before->first;
      entry.runs.erase(before);
    }
  }
  if (after != entry.runs.end() && after->first == range.end) {
    crc = CombineCrc32(crc, after->second.crc, after->second.end - after->first);
    whole.end = after->second.end;
    entry.runs.erase(after);
  }
  entry.runs[whole.begin] = {whole.end, crc};
  entry.is_whole = whole == entry.range;
  if (entry.is_whole && crc != entry.crc) {
    entry.result = absl::DataLossError(absl::StrFormat("entry %s, bytes %d to %d: CRC-32 %08x != recorded %08x",
                                                       Quote(entry.name), whole.begin, whole.end - 1, crc, entry.crc));
  }
  return entry.result;
}

std::vector<Interval> EntryChecksums::Missing() const {
  std::vector<Interval> missing;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [begin, entry] : entries_) {
    if (entry.is_whole || entry.runs.empty()) continue;
    int64_t at = begin;
    for (const auto& [from, run] : entry.runs) {
      if (from > at) missing.push_back({at, from});
      at = run.end;
    }
    if (at < entry.range.end) missing.push_back({at, entry.range.end});
  }
  return missing;
}

absl::Status ChecksummedFile::Read(int64_t offset, absl::Span<std::byte> out) const {
  FSDP_RETURN_IF_ERROR(file_->Read(offset, out));
  return checksums_->Add(offset, out);
}

absl::Status ReadForChecksums(const File& file, const std::vector<Interval>& ranges) {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  std::vector<std::byte> piece;
  for (const Interval& range : ranges) {
    for (int64_t at = range.begin; at < range.end; at += kPieceBytes) {
      piece.resize(std::min(kPieceBytes, range.end - at));
      FSDP_RETURN_IF_ERROR(file.Read(at, absl::MakeSpan(piece)));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
