// SPDX-License-Identifier: Apache-2.0
//
// A block is a sequence of: token | literals | distance of a match, u16. The upper half of the token is the number of
// literals, the lower the length of the match less 4; 15 means that bytes follow, which are added until one is not 255.
// The last sequence has no match.
#include "fsdp/checkpoint/foreign/orbax/lz4_block.h"

#include <algorithm>
#include <cstring>

namespace fsdp {
namespace {

constexpr size_t kLeastMatch = 4;

absl::Status Damaged() { return absl::DataLossError("its LZ4 block is damaged, or has not the size of the chunk"); }

}  // namespace

// A block is a list of sequences: a token with two half bytes, the number of literals and the length of a match less 4;
// more length bytes if a half is 15; the literals; the distance of the match. The last one ends after its literals.
// Source: lz4_Block_format.md.
absl::Status InflateLz4(std::string_view block, absl::Span<std::byte> out) {
  size_t in = 0;
  size_t made = 0;
  const auto byte = [&] { return static_cast<unsigned char>(block[in++]); };
  // Adds the bytes that follow a half token of 15; false at the end of the block.
  const auto extend = [&](size_t& length) {
    if (length != 15) return true;
    while (in < block.size()) {
      const unsigned char more = byte();
      length += more;
      if (more != 255) return true;
    }
    return false;
  };
  while (in < block.size()) {
    const unsigned char token = byte();
    size_t literals = token >> 4;
    if (!extend(literals) || literals > block.size() - in || literals > out.size() - made) return Damaged();
    std::memcpy(out.data() + made, block.data() + in, literals);
    in += literals;
    made += literals;
    if (in == block.size()) break;
    if (block.size() - in < 2) return Damaged();
    const size_t low = byte();
    const size_t distance = low | size_t{byte()} << 8;
    size_t match = token & 15;
    if (!extend(match)) return Damaged();
    match += kLeastMatch;
    if (distance == 0 || distance > made || match > out.size() - made) return Damaged();
    // A match may overlap what it makes, which repeats it.
    for (const size_t end = made + match; made < end;) {
      const size_t run = std::min(distance, end - made);
      std::memcpy(out.data() + made, out.data() + made - distance, run);
      made += run;
    }
  }
  return made == out.size() ? absl::OkStatus() : Damaged();
}

}  // namespace fsdp
