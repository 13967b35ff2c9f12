// SPDX-License-Identifier: Apache-2.0
//
// Reads a zip archive from its end to its front:
//
//   1. the end record, which only a comment may follow;
//   2. the zip64 end record, if there is a locator before the end record;
//   3. the central directory that these records name;
//   4. for each of its entries the local header, which precedes the payload.
//
// Zip states most facts twice, and different programs read an archive with two different statements differently: a way
// to show a scanner one pickle and torch another. Here the directory decides, the local header must agree in name and
// method, entries may not overlap, and everything is before the directory. Every number is compared with the available
// bytes before it is used, and sizes are compared as a <= b - c, which cannot overflow.
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"

namespace fsdp {
namespace {

// The position of the central directory.
struct Central {
  int64_t offset = 0;
  int64_t nbytes = 0;
  int64_t entries = 0;
};

absl::Status Broken(const std::string& what) { return absl::DataLossError(absl::StrCat("zip archive: ", what)); }

absl::Status BrokenEntry(const ZipEntry& entry, const std::string& what) {
  return Broken(absl::StrCat("entry ", Quote(entry.name), ": ", what));
}

// Step 1. Returns the offset of the end record. Only a comment may follow it, and a comment may also contain the
// signature: the record is the one whose comment ends at the end of the archive.
absl::StatusOr<int64_t> FindEnd(const FileSlice& archive, std::string_view tail, int64_t tail_offset) {
  for (int64_t at = static_cast<int64_t>(tail.size()) - kZipEndBytes; at >= 0; --at) {
    if (ZipInteger(tail, at, 4) != kZipEndSignature) continue;
    const auto comment = static_cast<int64_t>(ZipInteger(tail, at + 20, 2));
    if (tail_offset + at + kZipEndBytes + comment == archive.nbytes) return tail_offset + at;
  }
  return Broken("its end record is missing: it is not a zip archive, or is truncated");
}

// Step 2. Sets the central directory from the zip64 end record, if there is a locator before `end`.
absl::Status ReadZip64End(const FileSlice& archive, int64_t end, Central& central) {
  if (end < kZip64LocatorBytes) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::string locator, archive.ReadText(end - kZip64LocatorBytes, kZip64LocatorBytes));
  if (ZipInteger(locator, 0, 4) != kZip64LocatorSignature) return absl::OkStatus();
  const uint64_t at = ZipInteger(locator, 8, 8);
  if (at > static_cast<uint64_t>(end - kZip64LocatorBytes))
    return Broken("its zip64 end record is outside the archive");
  FSDP_ASSIGN_OR_RETURN(const std::string record, archive.ReadText(static_cast<int64_t>(at), kZip64EndBytes));
  if (ZipInteger(record, 0, 4) != kZip64EndSignature) return Broken("its zip64 end record is missing");
  if (ZipInteger(record, 16, 4) != 0 || ZipInteger(record, 20, 4) != 0) return Broken("it is one of several disks");
  central.entries = static_cast<int64_t>(ZipInteger(record, 32, 8));
  central.nbytes = static_cast<int64_t>(ZipInteger(record, 40, 8));
  central.offset = static_cast<int64_t>(ZipInteger(record, 48, 8));
  return absl::OkStatus();
}

absl::StatusOr<Central> FindCentral(const FileSlice& archive) {
  const int64_t tail_bytes = std::min(archive.nbytes, kZipEndBytes + kZipMaxCommentBytes);
  FSDP_ASSIGN_OR_RETURN(const std::string tail, archive.ReadText(archive.nbytes - tail_bytes, tail_bytes));
  FSDP_ASSIGN_OR_RETURN(const int64_t end, FindEnd(archive, tail, archive.nbytes - tail_bytes));
  const std::string_view record = std::string_view(tail).substr(end - (archive.nbytes - tail_bytes));
  const uint64_t disk = ZipInteger(record, 4, 2);
  if (disk != 0 && disk != kZipMax16) return Broken("it is one of several disks");
  Central central = {static_cast<int64_t>(ZipInteger(record, 16, 4)), static_cast<int64_t>(ZipInteger(record, 12, 4)),
                     static_cast<int64_t>(ZipInteger(record, 10, 2))};
  FSDP_RETURN_IF_ERROR(ReadZip64End(archive, end, central));
  if (central.offset < 0 || central.nbytes < 0 || central.offset > end || central.nbytes > end - central.offset) {
    return Broken("its central directory is outside the archive");
  }
  if (central.nbytes > kMaxZipDirectoryBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("zip archive: a central directory of ", central.nbytes,
                                                     " bytes, more than ", kMaxZipDirectoryBytes));
  }
  if (central.entries < 0 || central.entries > central.nbytes / kZipCentralBytes) {
    return Broken(
        absl::StrCat(central.entries, " entries do not fit in a central directory of ", central.nbytes, " bytes"));
  }
  return central;
}

// Replaces the 32-bit values that are all ones with the zip64 field of `extra`, in the order that the format defines.
absl::Status ReadZip64Extra(std::string_view extra, ZipEntry& entry) {
  int64_t* const wanted[] = {&entry.nbytes, &entry.stored_bytes, &entry.header_offset};
  while (extra.size() >= 4) {
    const uint64_t id = ZipInteger(extra, 0, 2);
    const uint64_t length = ZipInteger(extra, 2, 2);
    if (length > extra.size() - 4) return BrokenEntry(entry, "its extra fields are cut off");
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != kZip64ExtraId) continue;
    for (int64_t* value : wanted) {
      if (*value != kZipMax32) continue;
      if (field.size() < 8) return BrokenEntry(entry, "its zip64 field is too short");
      *value = static_cast<int64_t>(ZipInteger(field, 0, 8));
      field.remove_prefix(8);
    }
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// Step 3. Removes one record of the central directory from `rest`.
absl::StatusOr<ZipEntry> TakeEntry(std::string_view& rest) {
  if (static_cast<int64_t>(rest.size()) < kZipCentralBytes || ZipInteger(rest, 0, 4) != kZipCentralSignature) {
    return Broken("its central directory is damaged");
  }
  const std::string_view record = rest.substr(0, kZipCentralBytes);
  const uint64_t name_bytes = ZipInteger(record, 28, 2);
  const uint64_t extra_bytes = ZipInteger(record, 30, 2);
  const uint64_t comment_bytes = ZipInteger(record, 32, 2);
  rest.remove_prefix(kZipCentralBytes);
  if (name_bytes + extra_bytes + comment_bytes > rest.size()) return Broken("its central directory is cut off");
  ZipEntry entry;
  entry.name = std::string(rest.substr(0, name_bytes));
  entry.method = static_cast<uint16_t>(ZipInteger(record, 10, 2));
  entry.crc = static_cast<uint32_t>(ZipInteger(record, 16, 4));
  entry.stored_bytes = static_cast<int64_t>(ZipInteger(record, 20, 4));
  entry.nbytes = static_cast<int64_t>(ZipInteger(record, 24, 4));
  entry.header_offset = static_cast<int64_t>(ZipInteger(record, 42, 4));
  FSDP_RETURN_IF_ERROR(CheckZipEntryName(entry.name));
  if ((ZipInteger(record, 8, 2) & kZipEncryptedFlag) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("zip archive: entry ", Quote(entry.name), " is encrypted"));
  }
  FSDP_RETURN_IF_ERROR(ReadZip64Extra(rest.substr(name_bytes, extra_bytes), entry));
  rest.remove_prefix(name_bytes + extra_bytes + comment_bytes);
  return entry;
}

// Step 4. Finds the payload after the local header, whose extra field may differ from the directory's. Ignores the
// header's sizes and CRC: they are zero with a data descriptor, as torch writes. All of it must be before `limit`,
// the start of the directory.
absl::Status PlacePayload(const FileSlice& archive, int64_t limit, ZipEntry& entry) {
  const auto outside = [&] { return BrokenEntry(entry, "it is outside the archive"); };
  if (entry.header_offset < 0 || entry.stored_bytes < 0 || entry.nbytes < 0) return outside();
  if (entry.header_offset > limit - kZipLocalBytes) return outside();
  FSDP_ASSIGN_OR_RETURN(const std::string header, archive.ReadText(entry.header_offset, kZipLocalBytes));
  if (ZipInteger(header, 0, 4) != kZipLocalSignature) return BrokenEntry(entry, "its local header is missing");
  if (ZipInteger(header, 8, 2) != entry.method) return BrokenEntry(entry, "its two headers contradict each other");
  const auto name_bytes = static_cast<int64_t>(ZipInteger(header, 26, 2));
  entry.payload_offset =
      entry.header_offset + kZipLocalBytes + name_bytes + static_cast<int64_t>(ZipInteger(header, 28, 2));
  if (entry.payload_offset > limit || entry.stored_bytes > limit - entry.payload_offset) return outside();
  FSDP_ASSIGN_OR_RETURN(const std::string name, archive.ReadText(entry.header_offset + kZipLocalBytes, name_bytes));
  if (name != entry.name) return BrokenEntry(entry, absl::StrCat("its local header names ", Quote(name)));
  if (entry.is_stored() && entry.stored_bytes != entry.nbytes) {
    return BrokenEntry(entry, absl::StrCat("it is stored, but has ", entry.stored_bytes, " bytes of ", entry.nbytes));
  }
  return absl::OkStatus();
}

}  // namespace

// No name is ever used as a path here, but `unzip` of the same file would do so: names that leave the folder are
// refused.
absl::Status CheckZipEntryName(std::string_view name) {
  const bool leads_elsewhere = name.empty() || name[0] == '/' || name.find('\\') != name.npos ||
                               name.find('\0') != name.npos || name.size() > kZipMax16 ||
                               absl::StrCat("/", std::string(name), "/").find("/../") != std::string::npos;
  if (!leads_elsewhere) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("zip archive: entry ", Quote(std::string(name)), " has a name that is refused"));
}

std::string_view ZipDirectory::name(size_t i) const {
  return std::string_view(names_).substr(entries_[i].name, entries_[i].name_bytes);
}

ZipEntry ZipDirectory::operator[](size_t i) const {
  const Entry& entry = entries_[i];
  return {.name = std::string(name(i)),
          .method = entry.method,
          .crc = entry.crc,
          .nbytes = entry.nbytes,
          .stored_bytes = entry.stored_bytes,
          .header_offset = entry.header_offset,
          .payload_offset = entry.payload_offset};
}

std::optional<ZipEntry> ZipDirectory::Find(std::string_view wanted) const {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), wanted,
                       [this](const Entry& entry, std::string_view text) { return name(entry.by_name) < text; });
  if (at == entries_.end() || name(at->by_name) != wanted) return std::nullopt;
  return (*this)[at->by_name];
}

absl::StatusOr<ZipDirectory> ZipDirectory::Read(const FileSlice& archive) {
  FSDP_ASSIGN_OR_RETURN(const Central central, FindCentral(archive));
  FSDP_ASSIGN_OR_RETURN(const std::string bytes, archive.ReadText(central.offset, central.nbytes));
  std::string_view rest = bytes;
  ZipDirectory directory;
  std::vector<Entry>& entries = directory.entries_;
  entries.reserve(central.entries);
  // FindCentral has bounded the number of entries by the directory's bytes, so this is not negative.
  directory.names_.reserve(central.nbytes - central.entries * kZipCentralBytes);
  for (int64_t i = 0; i < central.entries; ++i) {
    FSDP_ASSIGN_OR_RETURN(ZipEntry entry, TakeEntry(rest));
    FSDP_RETURN_IF_ERROR(PlacePayload(archive, central.offset, entry));
    entries.push_back({.name = static_cast<uint32_t>(directory.names_.size()),
                       .crc = entry.crc,
                       .name_bytes = static_cast<uint16_t>(entry.name.size()),
                       .method = entry.method,
                       .by_name = static_cast<uint32_t>(i),
                       .nbytes = entry.nbytes,
                       .stored_bytes = entry.stored_bytes,
                       .header_offset = entry.header_offset,
                       .payload_offset = entry.payload_offset});
    directory.names_ += entry.name;
  }
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  // Overlapping entries would allow one payload to be read under two names, and a small archive to claim a large one (a
  // zip bomb).
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return entries[a].header_offset < entries[b].header_offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Entry& before = entries[order[i - 1]];
    if (before.payload_offset + before.stored_bytes <= entries[order[i]].header_offset) continue;
    return Broken(absl::StrCat("entries ", Quote(directory.name(order[i - 1])), " and ",
                               Quote(directory.name(order[i])), " overlap"));
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return directory.name(a) < directory.name(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (directory.name(order[i - 1]) != directory.name(order[i])) continue;
    return BrokenEntry(directory[order[i]], "two entries have this name");
  }
  for (size_t i = 0; i < order.size(); ++i) entries[i].by_name = order[i];
  return directory;
}

absl::StatusOr<std::vector<ZipEntry>> ReadZipDirectory(const FileSlice& archive) {
  FSDP_ASSIGN_OR_RETURN(const ZipDirectory directory, ZipDirectory::Read(archive));
  std::vector<ZipEntry> entries;
  for (size_t i = 0; i < directory.size(); ++i) entries.push_back(directory[i]);
  return entries;
}

}  // namespace fsdp
