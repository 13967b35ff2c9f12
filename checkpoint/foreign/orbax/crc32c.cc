// SPDX-License-Identifier: Apache-2.0
//
// Slicing by 8: table k has the CRC of a byte that k zero bytes follow, so that eight bytes take eight independent
// lookups instead of a chain of eight.
#include "fsdp/checkpoint/foreign/orbax/crc32c.h"

#include <array>
#include <cstddef>

namespace fsdp {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kSlices = 8;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < kSlices; ++k) {
    for (size_t i = 0; i < 256; ++i) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t ByteAt(std::string_view bytes, size_t i) { return static_cast<unsigned char>(bytes[i]); }

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (; bytes.size() >= kSlices; bytes.remove_prefix(kSlices)) {
    uint32_t next = 0;
    for (size_t i = 0; i < kSlices; ++i) {
      const uint32_t mixed = ByteAt(bytes, i) ^ (i < 4 ? (crc >> (8 * i)) & 255 : 0);
      next ^= kTables[kSlices - 1 - i][mixed];
    }
    crc = next;
  }
  for (size_t i = 0; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ ByteAt(bytes, i)) & 255];
  return ~crc;
}

}  // namespace fsdp
