// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/event_reader_testutil.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// Bit by bit, by the definition; the writer uses ISA-L.
uint32_t PlainCrc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  return crc ^ 0xffffffff;
}

bool HasChecksum(std::string_view bytes, uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8;
  // The reverse of the mask: the writer rotates by 15 and adds the constant.
  return PlainCrc32c(bytes) == (rotated >> 17 | rotated << 15);
}

// A field of a protocol buffer: the value of wire types 0, 1 and 5 in `number`, of 2 in `bytes`.
struct Field {
  uint64_t id = 0;
  uint64_t number = 0;
  std::string_view bytes;
};

absl::StatusOr<std::vector<Field>> FieldsOf(std::string_view text) {
  std::vector<Field> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    // At most 64 bits: a longer varint is damage, not a loop.
    for (int shift = 0; at < text.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(text[at++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < text.size()) {
    // The low three bits are the wire type, the others the number of the field.
    const uint64_t key = varint();
    Field field;
    field.id = key >> 3;
    const uint64_t type = key & 7;
    const size_t nbytes = type == 1 ? 8 : type == 5 ? 4 : 0;
    if (type == 0 || type == 2) field.number = varint();
    const size_t size = type == 2 ? field.number : nbytes;
    // Groups (3, 4) are not in the format, and a size from the file may point beyond it.
    if (type > 5 || type == 3 || type == 4 || size > text.size() - at) return absl::DataLossError("a torn field");
    if (type == 2) field.bytes = text.substr(at, size);
    if (nbytes != 0) std::memcpy(&field.number, text.data() + at, nbytes);
    at += size;
    fields.push_back(field);
  }
  return fields;
}

template <typename T>
T As(uint64_t number) {
  // FieldsOf has copied the value to the first bytes; the file and this machine are little-endian.
  T value;
  std::memcpy(&value, &number, sizeof(T));
  return value;
}

absl::Status ReadValue(std::string_view bytes, ReadEvent& event) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<Field> fields, FieldsOf(bytes));
  std::string tag;
  // The tag comes first: the writer puts fields in the order of their numbers.
  for (const Field& field : fields) {
    if (field.id == 1) tag = field.bytes;
    if (field.id == 2) event.scalars[tag] = As<float>(field.number);
    if (field.id != 8) continue;
    FSDP_ASSIGN_OR_RETURN(const std::vector<Field> tensor, FieldsOf(field.bytes));
    for (const Field& part : tensor) {
      if (part.id == 8) event.texts[tag] = part.bytes;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ReadEvent> Decode(std::string_view bytes) {
  ReadEvent event;
  FSDP_ASSIGN_OR_RETURN(const std::vector<Field> fields, FieldsOf(bytes));
  for (const Field& field : fields) {
    if (field.id == 1) event.wall_time = As<double>(field.number);
    if (field.id == 2) event.step = static_cast<int64_t>(field.number);
    if (field.id == 3) event.file_version = field.bytes;
    if (field.id == 7) event.is_start = field.bytes == std::string_view("\x08\x01");
    if (field.id != 5) continue;
    FSDP_ASSIGN_OR_RETURN(const std::vector<Field> values, FieldsOf(field.bytes));
    for (const Field& value : values) FSDP_RETURN_IF_ERROR(ReadValue(value.bytes, event));
  }
  return event;
}

}  // namespace

absl::StatusOr<std::vector<ReadEvent>> ReadEvents(const std::string& bytes) {
  std::vector<ReadEvent> events;
  size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(at);
    const absl::Status torn = absl::DataLossError(absl::StrFormat("byte %d: a torn record", at));
    uint64_t size = 0;
    uint32_t checksums[2] = {};
    // The length, two checksums and no data.
    if (rest.size() < 16) return torn;
    std::memcpy(&size, rest.data(), 8);
    std::memcpy(&checksums[0], rest.data() + 8, 4);
    if (!HasChecksum(rest.substr(0, 8), checksums[0])) {
      return absl::DataLossError(absl::StrFormat("byte %d: the checksum of a length is wrong", at));
    }
    if (size > rest.size() - 16) return torn;
    std::memcpy(&checksums[1], rest.data() + 12 + size, 4);
    if (!HasChecksum(rest.substr(12, size), checksums[1])) {
      return absl::DataLossError(absl::StrFormat("byte %d: the checksum of an event is wrong", at));
    }
    FSDP_ASSIGN_OR_RETURN(events.emplace_back(), Decode(rest.substr(12, size)));
    at += 16 + size;
  }
  return events;
}

std::vector<std::string> EventFilesOf(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) paths.push_back(entry.path());
  // Names begin with the time, so this is the order of the runs.
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace fsdp
