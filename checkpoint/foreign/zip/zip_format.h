// SPDX-License-Identifier: Apache-2.0
//
// The records of a zip archive, shared by reader and writer:
//
//   (local header | name | extra | payload [| data descriptor])* | central directory | zip64 end | zip64 locator | end
//
// PKWARE's APPNOTE.TXT defines them, sections 4.3 and 4.5. Integers are little-endian. Values that do not fit are all
// ones, with the real value in a zip64 extra field.
#ifndef FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_FORMAT_H_
#define FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

// The first four bytes of each record, "PK" and two more.
inline constexpr uint32_t kZipLocalSignature = 0x04034b50;
inline constexpr uint32_t kZipCentralSignature = 0x02014b50;
inline constexpr uint32_t kZip64EndSignature = 0x06064b50;
inline constexpr uint32_t kZip64LocatorSignature = 0x07064b50;
inline constexpr uint32_t kZipEndSignature = 0x06054b50;

// Bytes of the records without their variable parts: names, extra fields, comments.
inline constexpr int64_t kZipLocalBytes = 30;
inline constexpr int64_t kZipCentralBytes = 46;
inline constexpr int64_t kZip64EndBytes = 56;
inline constexpr int64_t kZip64LocatorBytes = 20;
inline constexpr int64_t kZipEndBytes = 22;

// The longest comment after the end record: a reader searches this many bytes at the end of the file for the record.
inline constexpr int64_t kZipMaxCommentBytes = 0xFFFF;

// The id of the extra field that has the 64-bit values, and the bit of the general purpose flags that marks an
// encrypted payload.
inline constexpr uint16_t kZip64ExtraId = 0x0001;
inline constexpr uint16_t kZipEncryptedFlag = 0x0001;

// A 16 or 32-bit field that is all ones has its value in the zip64 records.
inline constexpr uint32_t kZipMax16 = 0xFFFF;
inline constexpr uint32_t kZipMax32 = 0xFFFFFFFF;

// The integer of `count` bytes, at most 8, at `offset`. Precondition: it is inside `bytes`.
inline uint64_t ZipInteger(std::string_view bytes, int64_t offset, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  return value;
}

// True if `head`, the first bytes of a file, begins an archive whose first entry's name ends with `suffix`. Archives of
// different programs begin with the same four bytes; the names in them differ.
inline bool FirstZipEntryEndsWith(std::string_view head, std::string_view suffix) {
  if (static_cast<int64_t>(head.size()) < kZipLocalBytes || ZipInteger(head, 0, 4) != kZipLocalSignature) return false;
  const std::string_view name = head.substr(kZipLocalBytes, ZipInteger(head, 26, 2));
  return name.size() == ZipInteger(head, 26, 2) && name.size() >= suffix.size() &&
         name.substr(name.size() - suffix.size()) == suffix;
}

// Appends the low `count` bytes of `value`.
inline void AppendZipInteger(std::string& bytes, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_FORMAT_H_
