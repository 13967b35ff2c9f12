// SPDX-License-Identifier: Apache-2.0
//
// A zip entry has one CRC, but a tensor is read in pieces, by several threads, and sometimes only in part. Reading an
// entry twice, once for the tensor and once for the CRC, would halve the speed of loading. CRCs are linear, so the CRC
// of a run follows from the CRCs of its parts (CombineCrc32). Each entry keeps runs that do not touch, by their begin;
// most entries have one run at any time. A read that overlaps a run cannot be combined and is ignored; the rest of the
// entry is then in Missing(), and is read once more at the end.
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// ISA-L's CRC is three times as fast as zlib's, but only zlib can combine CRCs.
uint32_t Crc32(absl::Span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes) {
  return static_cast<uint32_t>(crc32_combine(first, second, second_bytes));
}

void EntryChecksums::Expect(const std::string& name, const Interval& range, uint32_t crc) {
  if (range.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.try_emplace(range.begin, Entry{.end = range.end, .expected = crc, .name = name});
}

void EntryChecksums::ExpectTable(const EntryTable& table) {
  const std::lock_guard<std::mutex> lock(mutex_);
  table_ = &table;
  // Entries without a CRC or without bytes have nothing to compare, so they are not in the order.
  order_.reserve(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    if (table.has_crc(i) && !table.range(i).empty()) order_.push_back(static_cast<uint32_t>(i));
  }
  // The table keeps its own order, so only indices are sorted: 4 bytes for each of a million entries.
  std::sort(order_.begin(), order_.end(),
            [&](uint32_t a, uint32_t b) { return table.range(a).begin < table.range(b).begin; });
  whole_in_table_.resize(order_.size());
}

bool EntryChecksums::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.empty() && order_.empty();
}

size_t EntryChecksums::PlaceInTable(int64_t begin) const {
  const auto at =
      std::partition_point(order_.begin(), order_.end(), [&](uint32_t i) { return table_->range(i).begin < begin; });
  return static_cast<size_t>(at - order_.begin());
}

std::optional<EntryChecksums::Found> EntryChecksums::FindAfter(int64_t at) const {
  if (table_ != nullptr) {
    size_t place = PlaceInTable(at + 1);
    if (place > 0 && table_->range(order_[place - 1]).end > at) --place;
    if (place == order_.size()) return std::nullopt;
    return Found{table_->range(order_[place]), table_->crc(order_[place])};
  }
  auto after = entries_.upper_bound(at);
  if (after != entries_.begin() && std::prev(after)->second.end > at) --after;
  if (after == entries_.end()) return std::nullopt;
  return Found{{after->first, after->second.end}, after->second.expected};
}

std::string EntryChecksums::NameOf(int64_t begin) const {
  return table_ != nullptr ? table_->name(order_[PlaceInTable(begin)]) : entries_.at(begin).name;
}

absl::Status EntryChecksums::Add(int64_t offset, absl::Span<const std::byte> bytes) {
  const Interval read = {offset, offset + static_cast<int64_t>(bytes.size())};
  int64_t at = read.begin;
  while (at < read.end) {
    Found entry;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const std::optional<Found> found = FindAfter(at);
      if (!found || found->range.begin >= read.end) return absl::OkStatus();
      entry = *found;
      at = std::min(entry.range.end, read.end);
      // The result of a completed entry is reported again, so that every reader of damaged bytes learns of it.
      if (IsWhole(entry)) {
        FSDP_RETURN_IF_ERROR(ResultOf(entry));
        continue;
      }
    }
    const Interval part = Intersect(entry.range, read);
    // Outside the lock. Meanwhile another thread may complete the entry, so AddRun tests that again.
    const uint32_t crc = Crc32(bytes.subspan(part.begin - offset, part.size()));
    const std::lock_guard<std::mutex> lock(mutex_);
    FSDP_RETURN_IF_ERROR(AddRun(entry, part, crc));
  }
  return absl::OkStatus();
}

bool EntryChecksums::IsWhole(const Found& entry) const {
  return table_ != nullptr ? whole_in_table_[PlaceInTable(entry.range.begin)] : whole_.contains(entry.range.begin);
}

absl::Status EntryChecksums::ResultOf(const Found& entry) const {
  const auto wrong = wrong_.find(entry.range.begin);
  if (wrong == wrong_.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("entry %s, bytes %d to %d: CRC-32 %08x != recorded %08x",
                                             Quote(NameOf(entry.range.begin)), entry.range.begin, entry.range.end - 1,
                                             wrong->second, entry.expected));
}

// Joins the new run with runs that end or begin at its ends. Most entries are read in one piece and never have runs.
absl::Status EntryChecksums::AddRun(const Found& entry, const Interval& range, uint32_t crc) {
  if (IsWhole(entry)) return ResultOf(entry);
  const int64_t begin = entry.range.begin;
  Interval whole = range;
  if (range != entry.range) {
    Runs& runs = runs_[begin];
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
  }
  if (whole != entry.range) return absl::OkStatus();
  // A complete entry keeps only one bit or key: with a million entries the runs would be the larger part.
  runs_.erase(begin);
  if (table_ != nullptr) {
    whole_in_table_[PlaceInTable(begin)] = true;
  } else {
    whole_.insert(begin);
  }
  if (crc != entry.expected) wrong_[begin] = crc;
  return ResultOf(entry);
}

std::vector<Interval> EntryChecksums::Missing() const {
  std::vector<Interval> missing;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [begin, runs] : runs_) {
    int64_t at = begin;
    for (const auto& [from, run] : runs) {
      if (from > at) missing.push_back({at, from});
      at = run.end;
    }
    // No result depends on entries without runs, so their bytes are not missing.
    if (const int64_t end = FindAfter(begin)->range.end; at < end) missing.push_back({at, end});
  }
  std::sort(missing.begin(), missing.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
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
