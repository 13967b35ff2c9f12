// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/zip/zip_layout.h"

#include <algorithm>
#include <utility>

#include "fsdp/checkpoint/foreign/zip/zip_format.h"

namespace fsdp {
namespace {

// Like torch.save, aligns payloads to 64 bytes, so that a mapped file has aligned tensors, by an extra field "FB" of
// padding.
constexpr int64_t kAlignment = 64;
constexpr uint16_t kPaddingExtraId = 0x4246;
constexpr int64_t kExtraHeaderBytes = 4;  // id and length of an extra field
constexpr uint16_t kVersionNeeded = 45;   // zip64
constexpr uint16_t kUtf8Flag = 0x0800;
constexpr uint16_t kDate = 0x0021;  // 1980-01-01, the earliest date

bool IsBig(int64_t value) { return value >= int64_t{kZipMax32}; }

uint32_t Clipped(int64_t value) { return IsBig(value) ? kZipMax32 : static_cast<uint32_t>(value); }

// The zip64 field with the `values` that do not fit in 32 bits; empty when all fit.
std::string Zip64Extra(const std::vector<int64_t>& values) {
  std::string field;
  for (const int64_t value : values) {
    if (IsBig(value)) AppendZipInteger(field, value, 8);
  }
  if (field.empty()) return field;
  std::string extra;
  AppendZipInteger(extra, kZip64ExtraId, 2);
  AppendZipInteger(extra, field.size(), 2);
  return extra + field;
}

// A local header has both sizes in its zip64 field, or neither (APPNOTE.TXT 4.5.3). Entries are stored, so the sizes
// are equal.
std::string LocalZip64Extra(int64_t nbytes) { return Zip64Extra({nbytes, nbytes}); }

// The fields from "version needed" to "name length", which both headers have. Flags and times are constants: a file
// must not depend on its creation date.
void AppendCommon(std::string& bytes, const ZipLayout::Member& member, uint32_t crc) {
  AppendZipInteger(bytes, kVersionNeeded, 2);
  AppendZipInteger(bytes, kUtf8Flag, 2);
  AppendZipInteger(bytes, 0, 2);  // stored
  AppendZipInteger(bytes, 0, 2);  // midnight
  AppendZipInteger(bytes, kDate, 2);
  AppendZipInteger(bytes, crc, 4);
  AppendZipInteger(bytes, Clipped(member.nbytes), 4);
  AppendZipInteger(bytes, Clipped(member.nbytes), 4);
  AppendZipInteger(bytes, member.name.size(), 2);
}

}  // namespace

// The size of the directory depends only on names and offsets, so the archive's size is known here, before any CRC.
ZipLayout::ZipLayout(std::vector<Member> members) : members_(std::move(members)) {
  int64_t at = 0;
  int64_t directory_bytes = 0;
  for (const Member& member : members_) {
    header_offsets_.push_back(at);
    const auto name_bytes = static_cast<int64_t>(member.name.size());
    const int64_t least = at + kZipLocalBytes + name_bytes +
                          static_cast<int64_t>(LocalZip64Extra(member.nbytes).size()) + kExtraHeaderBytes;
    payload_offsets_.push_back((least + kAlignment - 1) / kAlignment * kAlignment);
    directory_bytes +=
        kZipCentralBytes + name_bytes + static_cast<int64_t>(Zip64Extra({member.nbytes, member.nbytes, at}).size());
    at = payload_offsets_.back() + member.nbytes;
  }
  directory_offset_ = at;
  nbytes_ = at + directory_bytes + kZip64EndBytes + kZip64LocatorBytes + kZipEndBytes;
}

std::string ZipLayout::LocalHeader(size_t i, uint32_t crc) const {
  const Member& member = members_[i];
  const std::string zip64 = LocalZip64Extra(member.nbytes);
  const int64_t padding = payload_offsets_[i] - header_offsets_[i] - kZipLocalBytes - kExtraHeaderBytes -
                          static_cast<int64_t>(member.name.size() + zip64.size());
  // The padding field fills the space before the aligned payload; like torch's, its data is 'Z'.
  std::string bytes;
  AppendZipInteger(bytes, kZipLocalSignature, 4);
  AppendCommon(bytes, member, crc);
  AppendZipInteger(bytes, zip64.size() + kExtraHeaderBytes + padding, 2);
  bytes += member.name;
  bytes += zip64;
  AppendZipInteger(bytes, kPaddingExtraId, 2);
  AppendZipInteger(bytes, padding, 2);
  bytes.append(padding, 'Z');
  return bytes;
}

std::string ZipLayout::Directory(const std::vector<uint32_t>& crcs) const {
  std::string bytes;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    const std::string zip64 = Zip64Extra({member.nbytes, member.nbytes, header_offsets_[i]});
    AppendZipInteger(bytes, kZipCentralSignature, 4);
    AppendZipInteger(bytes, kVersionNeeded, 2);  // made by
    AppendCommon(bytes, member, crcs[i]);
    AppendZipInteger(bytes, zip64.size(), 2);
    AppendZipInteger(bytes, 0, 2);  // no comment
    AppendZipInteger(bytes, 0, 2);  // the first disk
    AppendZipInteger(bytes, 0, 2);  // no internal attributes
    AppendZipInteger(bytes, 0, 4);  // no external attributes
    AppendZipInteger(bytes, Clipped(header_offsets_[i]), 4);
    bytes += member.name;
    bytes += zip64;
  }
  // The zip64 end record and its locator are always written: their size is then constant, and readers that do not need
  // them skip them.
  const auto directory_bytes = static_cast<int64_t>(bytes.size());
  const auto count = static_cast<int64_t>(members_.size());
  AppendZipInteger(bytes, kZip64EndSignature, 4);
  AppendZipInteger(bytes, kZip64EndBytes - 12, 8);
  AppendZipInteger(bytes, kVersionNeeded, 2);
  AppendZipInteger(bytes, kVersionNeeded, 2);
  AppendZipInteger(bytes, 0, 4);
  AppendZipInteger(bytes, 0, 4);
  AppendZipInteger(bytes, count, 8);
  AppendZipInteger(bytes, count, 8);
  AppendZipInteger(bytes, directory_bytes, 8);
  AppendZipInteger(bytes, directory_offset_, 8);
  AppendZipInteger(bytes, kZip64LocatorSignature, 4);
  AppendZipInteger(bytes, 0, 4);
  AppendZipInteger(bytes, directory_offset_ + directory_bytes, 8);
  AppendZipInteger(bytes, 1, 4);
  // All ones means that the number is in the zip64 end record.
  const auto entries = static_cast<uint64_t>(std::min<int64_t>(count, kZipMax16));
  AppendZipInteger(bytes, kZipEndSignature, 4);
  AppendZipInteger(bytes, 0, 4);
  AppendZipInteger(bytes, entries, 2);
  AppendZipInteger(bytes, entries, 2);
  AppendZipInteger(bytes, Clipped(directory_bytes), 4);
  AppendZipInteger(bytes, Clipped(directory_offset_), 4);
  AppendZipInteger(bytes, 0, 2);
  return bytes;
}

}  // namespace fsdp
