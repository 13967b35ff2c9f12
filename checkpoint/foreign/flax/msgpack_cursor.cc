// SPDX-License-Identifier: Apache-2.0
//
// The first byte of a value has its type, and of short values their length. Numbers are big-endian.
#include "fsdp/checkpoint/foreign/flax/msgpack_cursor.h"

#include <bit>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

MsgpackToken Short(MsgpackType type, int length) { return {.type = type, .length = length}; }

// An integer of `size` bytes with a sign.
MsgpackToken Signed(uint64_t bits, int size) {
  const int shift = 64 - 8 * size;
  const auto value = static_cast<int64_t>(bits << shift) >> shift;
  return {.type = MsgpackType::kInteger, .is_negative = value < 0, .integer = static_cast<uint64_t>(value)};
}

}  // namespace

std::string MsgpackTypeName(MsgpackType type) {
  switch (type) {
    case MsgpackType::kNil:
      return "nil";
    case MsgpackType::kBool:
      return "a bool";
    case MsgpackType::kInteger:
      return "an integer";
    case MsgpackType::kFloat:
      return "a float";
    case MsgpackType::kText:
      return "a text";
    case MsgpackType::kBinary:
      return "bytes";
    case MsgpackType::kArray:
      return "an array";
    case MsgpackType::kMap:
      return "a map";
    case MsgpackType::kExtension:
      return "an extension";
  }
  return "";
}

absl::StatusOr<uint64_t> MsgpackCursor::Number(int size) {
  std::byte bytes[8];
  FSDP_RETURN_IF_ERROR(cursor_.Read(absl::MakeSpan(bytes, size)));
  uint64_t number = 0;
  for (int i = 0; i < size; ++i) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

// A value whose length is in the next `size` bytes.
absl::StatusOr<MsgpackToken> MsgpackCursor::Sized(MsgpackType type, int size) {
  FSDP_ASSIGN_OR_RETURN(const uint64_t length, Number(size));
  return MsgpackToken{.type = type, .length = static_cast<int64_t>(length)};
}

absl::StatusOr<MsgpackToken> MsgpackCursor::Extension(int64_t length) {
  FSDP_ASSIGN_OR_RETURN(const uint8_t extension, cursor_.Byte());
  return MsgpackToken{
      .type = MsgpackType::kExtension, .length = length, .extension = static_cast<int>(static_cast<int8_t>(extension))};
}

// The codes from 0xc0 to 0xdf.
absl::StatusOr<MsgpackToken> MsgpackCursor::Scalar(uint8_t code) {
  if (code == 0xc0) return MsgpackToken{};
  if (code == 0xc2 || code == 0xc3) return MsgpackToken{.type = MsgpackType::kBool, .integer = code & 1u};
  if (code >= 0xc4 && code <= 0xc6) return Sized(MsgpackType::kBinary, 1 << (code - 0xc4));
  if (code >= 0xc7 && code <= 0xc9) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t length, Number(1 << (code - 0xc7)));
    return Extension(static_cast<int64_t>(length));
  }
  if (code == 0xca || code == 0xcb) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t bits, Number(code == 0xca ? 4 : 8));
    const double number =
        code == 0xca ? std::bit_cast<float>(static_cast<uint32_t>(bits)) : std::bit_cast<double>(bits);
    return MsgpackToken{.type = MsgpackType::kFloat, .number = number};
  }
  if (code >= 0xcc && code <= 0xcf) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t number, Number(1 << (code - 0xcc)));
    return MsgpackToken{.type = MsgpackType::kInteger, .integer = number};
  }
  if (code >= 0xd0 && code <= 0xd3) {
    const int size = 1 << (code - 0xd0);
    FSDP_ASSIGN_OR_RETURN(const uint64_t bits, Number(size));
    return Signed(bits, size);
  }
  if (code >= 0xd4 && code <= 0xd8) return Extension(int64_t{1} << (code - 0xd4));
  if (code >= 0xd9 && code <= 0xdb) return Sized(MsgpackType::kText, 1 << (code - 0xd9));
  if (code == 0xdc || code == 0xdd) return Sized(MsgpackType::kArray, code == 0xdc ? 2 : 4);
  if (code == 0xde || code == 0xdf) return Sized(MsgpackType::kMap, code == 0xde ? 2 : 4);
  return absl::DataLossError(absl::StrCat("byte ", position() - 1, " is ", code, ", which no value begins with"));
}

absl::StatusOr<MsgpackToken> MsgpackCursor::Next() {
  FSDP_ASSIGN_OR_RETURN(const uint8_t code, cursor_.Byte());
  MsgpackToken token;
  if (code < 0x80 || code >= 0xe0) {
    token = Signed(code, 1);
  } else if (code < 0xc0) {
    token = code < 0x90   ? Short(MsgpackType::kMap, code & 15)
            : code < 0xa0 ? Short(MsgpackType::kArray, code & 15)
                          : Short(MsgpackType::kText, code & 31);
  } else {
    FSDP_ASSIGN_OR_RETURN(token, Scalar(code));
  }
  // An item has a byte or more, a pair two.
  const int64_t least = token.type == MsgpackType::kMap ? 2 * token.length : token.length;
  FSDP_RETURN_IF_ERROR(cursor_.CheckIsThere(static_cast<uint64_t>(least)));
  return token;
}

absl::StatusOr<MsgpackToken> MsgpackCursor::Expect(MsgpackType type, const char* what) {
  FSDP_ASSIGN_OR_RETURN(MsgpackToken token, Next());
  if (token.type == type && !token.is_negative) return token;
  return absl::DataLossError(absl::StrCat(what, " before byte ", position(), " is ",
                                          token.is_negative ? "negative" : MsgpackTypeName(token.type), ", expected ",
                                          MsgpackTypeName(type)));
}

absl::StatusOr<std::string> MsgpackCursor::Bytes(const MsgpackToken& token, int64_t max_bytes) {
  if (token.length > max_bytes) {
    return absl::DataLossError(absl::StrCat(MsgpackTypeName(token.type), " at byte ", position(), " has ", token.length,
                                            " bytes, expected at most ", max_bytes));
  }
  return cursor_.Text(static_cast<uint64_t>(token.length));
}

}  // namespace fsdp
