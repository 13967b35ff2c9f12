// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/fuzz/arguments.h"

#include <limits>

namespace fsdp {
namespace {

// a + b, modulo 2^64.
int64_t Add(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }

}  // namespace

uint8_t Arguments::Byte() {
  if (bytes_.empty()) return 0;
  const auto byte = static_cast<uint8_t>(bytes_.front());
  bytes_.remove_prefix(1);
  return byte;
}

// Most of the 16 labels give numbers that functions accept, since a refused argument ends a call early.
int64_t Arguments::Number(int64_t limit) {
  // Two bytes for every kind: equal positions of an input keep their meaning when the first byte is mutated.
  const uint8_t kind = Byte();
  const int64_t byte = Byte();
  switch (kind % 16) {
    case 10:
      return Add(limit, byte);
    case 11:
      return Add(-1, -byte);
    case 12:
      return Add(std::numeric_limits<int64_t>::max(), -byte);
    case 13:
      return Add(std::numeric_limits<int64_t>::min(), byte);
    case 14:
      return Add(int64_t{1} << (byte % 63), -(byte / 128));
    case 15:
      return Add(limit, -byte);
    default:
      return kind % 2 == 0 || limit <= 0 ? byte : byte % limit;
  }
}

int32_t Arguments::Number32(int32_t limit) {
  const int64_t number = Number(limit);
  if (number > std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
  if (number < std::numeric_limits<int32_t>::min()) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(number);
}

size_t Arguments::StructSize(size_t size) {
  const uint8_t byte = Byte();
  switch (byte) {
    case 1:
      return 0;
    case 2:
      return size - sizeof(int32_t);  // within a pointer
    case 7:
      return size - sizeof(void*);  // an earlier release
    case 3:
      return size + 1;
    case 4:
      return std::numeric_limits<size_t>::max();
    case 5:
      return sizeof(size_t);
    default:
      return size;
  }
}

}  // namespace fsdp
