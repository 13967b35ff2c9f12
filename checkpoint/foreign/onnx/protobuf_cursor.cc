// SPDX-License-Identifier: Apache-2.0
//
// A varint has seven bits in each byte, the lowest first; the upper bit says that another byte follows. A field begins
// with the varint `number << 3 | wire type`.
#include "fsdp/checkpoint/foreign/onnx/protobuf_cursor.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<uint64_t> ProtobufCursor::Varint() {
  const int64_t begin = position();
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    FSDP_ASSIGN_OR_RETURN(const uint8_t byte, cursor_.Byte());
    number |= static_cast<uint64_t>(byte & 127) << shift;
    if (shift == 63 && byte > 1) break;
    if (byte < 128) return number;
  }
  return absl::DataLossError(absl::StrCat("the number at byte ", begin, " has more than 64 bits"));
}

absl::StatusOr<uint64_t> ProtobufCursor::Fixed(int size) {
  std::byte bytes[8];
  FSDP_RETURN_IF_ERROR(cursor_.Read(absl::MakeSpan(bytes, size)));
  uint64_t number = 0;
  for (int i = size - 1; i >= 0; --i) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

absl::StatusOr<ProtobufField> ProtobufCursor::Next(int64_t end) {
  const int64_t begin = position();
  ProtobufField field;
  FSDP_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
  field.wire = static_cast<ProtobufWire>(tag & 7);
  if (tag >> 3 == 0 || tag >> 32 != 0) return absl::DataLossError(absl::StrCat("no field is at byte ", begin));
  field.number = static_cast<int>(tag >> 3);
  int64_t nbytes = 0;  // behind the cursor
  field.range.offset = position();
  switch (field.wire) {
    case ProtobufWire::kVarint: {
      FSDP_ASSIGN_OR_RETURN(field.integer, Varint());
      break;
    }
    case ProtobufWire::kFixed32:
    case ProtobufWire::kFixed64: {
      FSDP_ASSIGN_OR_RETURN(field.integer, Fixed(field.wire == ProtobufWire::kFixed32 ? 4 : 8));
      break;
    }
    case ProtobufWire::kBytes: {
      FSDP_ASSIGN_OR_RETURN(const uint64_t length, Varint());
      FSDP_RETURN_IF_ERROR(cursor_.CheckIsThere(length));
      nbytes = static_cast<int64_t>(length);
      field.range = {position(), nbytes};
      break;
    }
    default:
      return absl::DataLossError(absl::StrCat("field ", field.number, " at byte ", begin, " has wire type ", tag & 7,
                                              ", expected 0, 1, 2 or 5"));
  }
  if (field.wire != ProtobufWire::kBytes) field.range.nbytes = position() - field.range.offset;
  if (position() + nbytes <= end) return field;
  return absl::DataLossError(absl::StrCat("field ", field.number, " at byte ", begin, " ends at byte ",
                                          position() + nbytes, ", behind its message, which ends at byte ", end));
}

absl::StatusOr<std::string> ProtobufCursor::Text(const ProtobufField& field, int64_t max_bytes, const char* what) {
  FSDP_RETURN_IF_ERROR(CheckWire(field, ProtobufWire::kBytes, what));
  if (field.range.nbytes > max_bytes) {
    return absl::DataLossError(absl::StrCat(what, " has ", field.range.nbytes, " bytes, expected at most ", max_bytes));
  }
  return cursor_.Text(static_cast<uint64_t>(field.range.nbytes));
}

absl::Status ProtobufCursor::Skip(const ProtobufField& field) {
  return cursor_.Skip(static_cast<uint64_t>(field.range.end() - position()));
}

absl::Status CheckWire(const ProtobufField& field, ProtobufWire wire, const char* what) {
  if (field.wire == wire) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, ", field ", field.number, " before byte ", field.range.end(),
                                          ", has wire type ", static_cast<int>(field.wire), ", expected ",
                                          static_cast<int>(wire)));
}

}  // namespace fsdp
