// SPDX-License-Identifier: Apache-2.0
//
// Values of GGUF's keys, as texts: a text as it is, a number in decimal (the fewest digits that give the same number),
// an array as JSON. A value that cannot be kept is walked over: one that is not UTF-8, or for which there is no room.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_VALUE_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_VALUE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_cursor.h"

namespace fsdp {

// The values are in files.
enum class GgufType : uint32_t {
  kUInt8 = 0,
  kInt8 = 1,
  kUInt16 = 2,
  kInt16 = 3,
  kUInt32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUInt64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufValue {
  GgufType type = GgufType::kUInt8;
  std::string text;                      // empty if `why_not` is not
  std::optional<uint64_t> integer = {};  // of an integer that is not negative
  std::string why_not = {};              // the reason why the text is not kept: "is not UTF-8"
};

// The longest text of one value that is kept.
inline constexpr int64_t kMaxGgufValueText = int64_t{32} << 20;

// Reads the type and the value at the cursor. kDataLoss for an unknown type, a bool that is neither 0 nor 1, arrays in
// more than 4 arrays, and a length beyond the end of the file. `room`: the bytes of text that may be kept.
absl::StatusOr<GgufValue> ReadGgufValue(GgufCursor& cursor, int64_t room);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_VALUE_H_
