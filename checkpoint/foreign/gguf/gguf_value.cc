// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_value.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"

namespace fsdp {
namespace {

constexpr int kMaxDepth = 4;

// The bytes of a value of a type with a fixed size; 0 for texts and arrays.
uint64_t SizeOf(GgufType type) {
  switch (type) {
    case GgufType::kUInt8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUInt16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUInt32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUInt64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// Python's JSON has the same names for numbers that JSON lacks.
template <typename Float>
std::string FloatText(Float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char text[32];
  const std::to_chars_result end = std::to_chars(std::begin(text), std::end(text), value);
  return std::string(text, end.ptr);
}

void AppendJson(std::string_view value, std::string& json) {
  constexpr char kHex[] = "0123456789abcdef";
  json += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&json, "\\u00", std::string(1, kHex[c >> 4]), std::string(1, kHex[c & 15]));
    } else {
      json += c;
    }
  }
  json += '"';
}

class ValueReader {
 public:
  ValueReader(GgufCursor& cursor, int64_t room) : cursor_(cursor), room_(std::min(room, kMaxGgufValueText)) {}

  absl::StatusOr<GgufValue> Read() {
    FSDP_ASSIGN_OR_RETURN(value_.type, ReadType());
    if (value_.type == GgufType::kArray) {
      FSDP_RETURN_IF_ERROR(ReadArray(1));
    } else if (value_.type == GgufType::kString) {
      FSDP_RETURN_IF_ERROR(ReadText(/*is_json=*/false));
    } else {
      FSDP_RETURN_IF_ERROR(ReadScalar(value_.type));
    }
    value_.text.shrink_to_fit();
    return std::move(value_);
  }

 private:
  absl::StatusOr<GgufType> ReadType() {
    FSDP_ASSIGN_OR_RETURN(const uint32_t type, cursor_.U32());
    if (type <= static_cast<uint32_t>(GgufType::kFloat64)) return static_cast<GgufType>(type);
    return absl::DataLossError(absl::StrCat("its type is ", type, ", expected 0 to 12"));
  }

  bool is_kept() const { return value_.why_not.empty(); }

  void Drop(std::string why_not) {
    value_.why_not = std::move(why_not);
    value_.text = std::string();
  }

  // Called before `nbytes` of text are added.
  void MakeRoom(int64_t nbytes) {
    if (is_kept() && nbytes > room_ - std::ssize(value_.text)) Drop("is too long");
  }

  absl::Status ReadText(bool is_json) {
    FSDP_ASSIGN_OR_RETURN(const uint64_t nbytes, cursor_.U64());
    // An escaped character has up to 6 bytes.
    if (nbytes > static_cast<uint64_t>(kMaxGgufValueText)) {
      Drop("is too long");
    } else {
      MakeRoom(static_cast<int64_t>(nbytes) * (is_json ? 6 : 1) + 3);
    }
    if (!is_kept()) return cursor_.Skip(nbytes);
    if (nbytes > static_cast<uint64_t>(cursor_.remaining())) return cursor_.Skip(nbytes);  // the error
    text_.resize(nbytes);
    FSDP_RETURN_IF_ERROR(cursor_.Read(absl::MakeSpan(reinterpret_cast<std::byte*>(text_.data()), text_.size())));
    if (!IsUtf8(text_)) {
      Drop("is not UTF-8");
    } else if (is_json) {
      AppendJson(text_, value_.text);
    } else {
      value_.text = std::move(text_);
    }
    return absl::OkStatus();
  }

  absl::Status ReadScalar(GgufType type) {
    switch (type) {
      case GgufType::kUInt8:
        return AddInteger(cursor_.U8());
      case GgufType::kInt8:
        return AddSigned<int8_t>(cursor_.U8());
      case GgufType::kUInt16:
        return AddInteger(cursor_.U16());
      case GgufType::kInt16:
        return AddSigned<int16_t>(cursor_.U16());
      case GgufType::kUInt32:
        return AddInteger(cursor_.U32());
      case GgufType::kInt32:
        return AddSigned<int32_t>(cursor_.U32());
      case GgufType::kUInt64:
        return AddInteger(cursor_.U64());
      case GgufType::kInt64:
        return AddSigned<int64_t>(cursor_.U64());
      case GgufType::kFloat32: {
        FSDP_ASSIGN_OR_RETURN(const uint32_t bits, cursor_.U32());
        return Add(FloatText(std::bit_cast<float>(bits)));
      }
      case GgufType::kFloat64: {
        FSDP_ASSIGN_OR_RETURN(const uint64_t bits, cursor_.U64());
        return Add(FloatText(std::bit_cast<double>(bits)));
      }
      case GgufType::kBool: {
        FSDP_ASSIGN_OR_RETURN(const uint8_t byte, cursor_.U8());
        if (byte > 1) return absl::DataLossError(absl::StrCat("a bool is ", byte, ", expected 0 or 1"));
        return Add(byte == 1 ? "true" : "false");
      }
      case GgufType::kString:
      case GgufType::kArray:
        break;
    }
    return absl::InternalError("a text or an array is not a scalar");
  }

  template <typename Integer>
  absl::Status AddInteger(absl::StatusOr<Integer> integer) {
    FSDP_RETURN_IF_ERROR(integer.status());
    value_.integer = *integer;
    return Add(absl::StrCat(*integer));
  }

  template <typename Signed, typename Bits>
  absl::Status AddSigned(absl::StatusOr<Bits> bits) {
    FSDP_RETURN_IF_ERROR(bits.status());
    const auto integer = static_cast<Signed>(*bits);
    if (integer >= 0) value_.integer = static_cast<uint64_t>(integer);
    return Add(absl::StrCat(integer));
  }

  absl::Status Add(std::string_view text) {
    MakeRoom(std::ssize(text));
    if (is_kept()) value_.text += text;
    return absl::OkStatus();
  }

  absl::Status ReadArray(int depth) {
    if (depth > kMaxDepth) return absl::DataLossError(absl::StrCat("arrays in more than ", kMaxDepth, " arrays"));
    FSDP_ASSIGN_OR_RETURN(const GgufType type, ReadType());
    FSDP_ASSIGN_OR_RETURN(const uint64_t count, cursor_.U64());
    // The least that an element takes: a text its length, an array its type and its length.
    const uint64_t size = type == GgufType::kString ? 8 : type == GgufType::kArray ? 12 : SizeOf(type);
    if (count > static_cast<uint64_t>(cursor_.remaining()) / size) {
      return absl::DataLossError(absl::StrCat("an array of ", count, " elements at byte ", cursor_.position(),
                                              " does not fit in the file: it is truncated or damaged"));
    }
    FSDP_RETURN_IF_ERROR(Add("["));
    for (uint64_t i = 0; i < count; ++i) {
      if (!is_kept() && SizeOf(type) != 0) return cursor_.Skip((count - i) * size);
      if (i > 0) FSDP_RETURN_IF_ERROR(Add(","));
      if (type == GgufType::kArray) {
        FSDP_RETURN_IF_ERROR(ReadArray(depth + 1));
      } else if (type == GgufType::kString) {
        FSDP_RETURN_IF_ERROR(ReadText(/*is_json=*/true));
      } else {
        FSDP_RETURN_IF_ERROR(ReadScalar(type));
      }
    }
    value_.integer.reset();
    return Add("]");
  }

  GgufCursor& cursor_;
  const int64_t room_;
  GgufValue value_;
  std::string text_;  // of an element, kept for its memory
};

}  // namespace

absl::StatusOr<GgufValue> ReadGgufValue(GgufCursor& cursor, int64_t room) { return ValueReader(cursor, room).Read(); }

}  // namespace fsdp
