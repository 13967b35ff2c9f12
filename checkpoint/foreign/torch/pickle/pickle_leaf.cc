// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_leaf.h"

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Kind = PickleKind;
using Op = PickleOpcode;

PickleLeaf Integer(int64_t value) { return {.kind = Kind::kInt, .integer = value}; }

PickleLeaf Bool(bool value) { return {.kind = Kind::kBool, .integer = value ? 1 : 0}; }

// BININT1 and BININT2 are unsigned; only BININT (4 bytes) is signed.
absl::StatusOr<PickleLeaf> TakeInteger(PickleInput& input, int nbytes) {
  FSDP_ASSIGN_OR_RETURN(const uint64_t value, input.TakeUnsigned(nbytes));
  return Integer(static_cast<int64_t>(value));
}

// The text is a view of the input. Take compares the length, which may be any 64-bit number, with the remaining bytes.
absl::StatusOr<PickleLeaf> TakeText(PickleInput& input, Kind kind, int length_bytes) {
  FSDP_ASSIGN_OR_RETURN(const uint64_t length, input.TakeUnsigned(length_bytes));
  FSDP_ASSIGN_OR_RETURN(const std::string_view text, input.Take(length));
  return PickleLeaf{.kind = kind, .text = text};
}

// LONG1, LONG4: two's complement of any length.
absl::StatusOr<PickleLeaf> TakeLong(PickleInput& input, int length_bytes) {
  FSDP_ASSIGN_OR_RETURN(const uint64_t length, input.TakeUnsigned(length_bytes));
  FSDP_ASSIGN_OR_RETURN(const std::string_view bytes, input.Take(length));
  // A number that long never occurs in a state dict, but the magic number of old torch files is one.
  if (length > sizeof(int64_t)) return PickleLeaf{.kind = Kind::kBigInt, .text = bytes};
  // Sign-extended: the bytes are two's complement of their own length.
  uint64_t value = length > 0 && (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  for (size_t i = length; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return Integer(static_cast<int64_t>(value));
}

// INT and LONG, in decimal; "00" and "01" are bools.
absl::StatusOr<PickleLeaf> TakeDecimal(PickleInput& input, bool may_be_bool) {
  FSDP_ASSIGN_OR_RETURN(std::string_view line, input.TakeLine());
  if (may_be_bool && (line == "00" || line == "01")) return Bool(line == "01");
  if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
  int64_t value = 0;
  if (!absl::SimpleAtoi(absl::string_view(line.data(), line.size()), &value)) {
    return input.Broken(absl::StrCat(Quote(line), " is not an integer of 64 bits"));
  }
  return Integer(value);
}

absl::StatusOr<PickleLeaf> TakeDecimalFloat(PickleInput& input) {
  FSDP_ASSIGN_OR_RETURN(const std::string_view line, input.TakeLine());
  PickleLeaf leaf = {.kind = Kind::kFloat};
  if (!absl::SimpleAtod(absl::string_view(line.data(), line.size()), &leaf.real)) {
    return input.Broken(absl::StrCat(Quote(line), " is not a number"));
  }
  return leaf;
}

absl::StatusOr<PickleLeaf> TakeBigEndianFloat(PickleInput& input) {
  FSDP_ASSIGN_OR_RETURN(const std::string_view bytes, input.Take(8));
  uint64_t bits = 0;
  for (const char byte : bytes) bits = bits << 8 | static_cast<uint8_t>(byte);
  PickleLeaf leaf = {.kind = Kind::kFloat};
  std::memcpy(&leaf.real, &bits, sizeof(leaf.real));
  return leaf;
}

// The allow-list is the machine's; decoding a name has no effect.
absl::StatusOr<PickleLeaf> TakeGlobal(PickleInput& input) {
  PickleLeaf leaf = {.kind = Kind::kGlobal};
  FSDP_ASSIGN_OR_RETURN(leaf.module, input.TakeLine());
  FSDP_ASSIGN_OR_RETURN(leaf.text, input.TakeLine());
  return leaf;
}

}  // namespace

// Opcodes that create a value without the stack or the memo, so that it can be decoded again from the bytes.
bool IsLeaf(Op opcode) {
  switch (opcode) {
    case Op::kNone:
    case Op::kNewTrue:
    case Op::kNewFalse:
    case Op::kInt:
    case Op::kLong:
    case Op::kBinInt:
    case Op::kBinInt1:
    case Op::kBinInt2:
    case Op::kLong1:
    case Op::kLong4:
    case Op::kFloat:
    case Op::kBinFloat:
    case Op::kShortBinString:
    case Op::kShortBinUnicode:
    case Op::kBinString:
    case Op::kBinUnicode:
    case Op::kBinUnicode8:
    case Op::kShortBinBytes:
    case Op::kBinBytes:
    case Op::kBinBytes8:
    case Op::kByteArray8:
    case Op::kEmptyTuple:
    case Op::kGlobal:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<PickleLeaf> TakeLeaf(Op opcode, PickleInput& input) {
  switch (opcode) {
    case Op::kNone:
      return PickleLeaf();
    case Op::kNewTrue:
      return Bool(true);
    case Op::kNewFalse:
      return Bool(false);
    case Op::kInt:
      return TakeDecimal(input, /*may_be_bool=*/true);
    case Op::kLong:
      return TakeDecimal(input, /*may_be_bool=*/false);
    case Op::kBinInt: {
      FSDP_ASSIGN_OR_RETURN(const uint64_t value, input.TakeUnsigned(4));
      return Integer(static_cast<int32_t>(static_cast<uint32_t>(value)));
    }
    case Op::kBinInt1:
      return TakeInteger(input, 1);
    case Op::kBinInt2:
      return TakeInteger(input, 2);
    case Op::kLong1:
      return TakeLong(input, 1);
    case Op::kLong4:
      return TakeLong(input, 4);
    case Op::kFloat:
      return TakeDecimalFloat(input);
    case Op::kBinFloat:
      return TakeBigEndianFloat(input);
    case Op::kShortBinString:
    case Op::kShortBinUnicode:
      // Python 2's str (BINSTRING) counts as a string and not as bytes, because old files have their names in it.
      return TakeText(input, Kind::kString, 1);
    case Op::kBinString:
    case Op::kBinUnicode:
      return TakeText(input, Kind::kString, 4);
    case Op::kBinUnicode8:
      return TakeText(input, Kind::kString, 8);
    case Op::kShortBinBytes:
      return TakeText(input, Kind::kBytes, 1);
    case Op::kBinBytes:
      return TakeText(input, Kind::kBytes, 4);
    case Op::kBinBytes8:
      return TakeText(input, Kind::kBytes, 8);
    case Op::kByteArray8:
      return TakeText(input, Kind::kByteArray, 8);
    case Op::kEmptyTuple:
      return PickleLeaf{.kind = Kind::kTuple};
    case Op::kGlobal:
      return TakeGlobal(input);
    default:
      CheckFailed("not the opcode of a leaf", __FILE__, __LINE__);
  }
}

// Cannot fail: the machine decoded the same bytes once before it published the id.
PickleLeaf LeafAt(std::string_view bytes, uint32_t place) {
  PickleInput input(bytes.substr(place));
  const absl::StatusOr<uint8_t> opcode = input.TakeOpcode();
  Check(opcode.ok(), "no value begins there");
  const absl::StatusOr<PickleLeaf> leaf = TakeLeaf(static_cast<PickleOpcode>(*opcode), input);
  Check(leaf.ok(), "no value begins there");
  return *leaf;
}

}  // namespace fsdp
