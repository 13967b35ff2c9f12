// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstddef>

namespace fsdp {

uint32_t Crc32c(std::string_view bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // ISA-L's length is an int
  uint32_t crc = ~uint32_t{0};
  for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kMost))) {
    // ISA-L reads only, although its pointer is not to const.
    auto* const begin = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
    crc = crc32_iscsi(begin, static_cast<int>(std::min(bytes.size(), kMost)), crc);
  }
  return ~crc;
}

}  // namespace fsdp
