// SPDX-License-Identifier: Apache-2.0
//
// OcdbtCursor: reads the fields of an OCDBT manifest or node one after the other: fixed integers, varints (LEB128),
// runs of bytes. After the first field that is not there, or is larger than its bound, it has failed: all later fields
// are 0 or empty, so a parser checks once, at the end of a column.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_CURSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp {

class OcdbtCursor {
 public:
  explicit OcdbtCursor(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

  // The next `nbytes` bytes; empty if there are fewer.
  std::string_view Bytes(size_t nbytes) {
    if (!ok_ || nbytes > bytes_.size()) return Fail();
    const std::string_view taken = bytes_.substr(0, nbytes);
    bytes_.remove_prefix(nbytes);
    return taken;
  }

  // Little-endian, of `nbytes` bytes.
  uint64_t Fixed(size_t nbytes) {
    const std::string_view taken = Bytes(nbytes);
    uint64_t value = 0;
    for (size_t i = 0; i < taken.size(); ++i) value |= uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }

  // A varint of at most `most`.
  uint64_t Varint(uint64_t most = UINT64_MAX) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Fixed(1);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 127) << shift;
      if (byte < 128) {
        if (value > most) Fail();
        return ok_ ? value : 0;
      }
    }
    Fail();
    return 0;
  }

  // `count` varints. Each takes a byte or more, so a count that the bytes cannot have fails before it is allocated.
  std::vector<uint64_t> Varints(size_t count, uint64_t most = UINT64_MAX) {
    if (count > left()) Fail();
    std::vector<uint64_t> column;
    if (!ok_) return column;
    column.reserve(count);
    for (size_t i = 0; i < count; ++i) column.push_back(Varint(most));
    return column;
  }

 private:
  std::string_view Fail() {
    ok_ = false;
    bytes_ = {};
    return {};
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_CURSOR_H_
