// SPDX-License-Identifier: Apache-2.0
//
// A zip entry has one CRC, but a tensor is read in pieces, by several threads, and at times only a part of it. Reading
// an entry twice, once for the tensor and once for the CRC, would halve the speed of loading. CRCs are linear, so the
// CRC of a run follows from those of its parts (CombineCrc32); each entry keeps runs that do not touch, by their begin,
// and most entries have one at any time. A read that overlaps a run cannot be combined and is ignored; the rest
// of the entry is then in Missing(), and is read once more at the end.
#include "fsdp/checkpoint/torch/zip/entry_checksums.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// ISA-L's CRC is three times as fast as zlib's, but only zlib can combine.
uint32_t Crc32(absl::Span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes) {
  return static_cast<uint32_t>(crc32_combine(first, second, second_bytes));
}

void EntryChecksums::Expect(const std::string& name, const Interval& range, uint32_t crc) {
  if (range.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.try_emplace(range.begin, Entry{.name = name, .end = range.end, .expected = crc});
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
    Interval range;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto after = entries_.upper_bound(at);
      if (after != entries_.begin() && std::prev(after)->second.end > at) --after;
      if (after == entries_.end() || after->first >= read.end) return absl::OkStatus();
      entry = &after->second;  // stays valid without the lock: entries are never removed, and a map does not move them
      range = {after->first, entry->end};
      at = std::min(range.end, read.end);
      if (entry->is_whole) {
        FSDP_RETURN_IF_ERROR(ResultOf(range.begin, *entry));
        continue;
      }
    }
    const Interval part = Intersect(range, read);
    const uint32_t crc = Crc32(bytes.subspan(part.begin - offset, part.size()));
    const std::lock_guard<std::mutex> lock(mutex_);
    FSDP_RETURN_IF_ERROR(AddRun(range.begin, *entry, part, crc));
  }
  return absl::OkStatus();
}

absl::Status EntryChecksums::ResultOf(int64_t begin, const Entry& entry) {
  if (!entry.is_whole || entry.actual == entry.expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("entry %s, bytes %d to %d: CRC-32 %08x != recorded %08x",
                                             Quote(entry.name), begin, entry.end - 1, entry.actual, entry.expected));
}

// Joins the new run with the runs that end or begin at its ends, if there are such.
absl::Status EntryChecksums::AddRun(int64_t begin, Entry& entry, const Interval& range, uint32_t crc) {
  if (entry.is_whole) return ResultOf(begin, entry);
  if (entry.runs == nullptr) entry.runs = std::make_unique<std::map<int64_t, Run>>();
  std::map<int64_t, Run>& runs = *entry.runs;
  Interval whole = range;
  auto after = runs.lower_bound(range.begin);
  if (after != runs.end() && after->first < range.end) return absl::OkStatus();  // some of it was read before
  if (after != runs.begin()) {
    const auto before = std::prev(after);
    if (before->second.end > range.begin) return absl::OkStatus();
    if (before->second.end == range.begin) {
      crc = CombineCrc32(before->second.crc, crc, range.size());
      whole.begin = before->first;
      runs.erase(before);
    }
  }
  if (after != runs.end() && after->first == range.end) {
    crc = CombineCrc32(crc, after->second.crc, after->second.end - after->first);
    whole.end = after->second.end;
    runs.erase(after);
  }
  runs[whole.begin] = {whole.end, crc};
  entry.is_whole = whole == Interval{begin, entry.end};
  if (!entry.is_whole) return absl::OkStatus();
  entry.runs = nullptr;
  entry.actual = crc;
  return ResultOf(begin, entry);
}

std::vector<Interval> EntryChecksums::Missing() const {
  std::vector<Interval> missing;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [begin, entry] : entries_) {
    if (entry.runs == nullptr) continue;
    int64_t at = begin;
    for (const auto& [from, run] : *entry.runs) {
      if (from > at) missing.push_back({at, from});
      at = run.end;
    }
    if (at < entry.end) missing.push_back({at, entry.end});
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
