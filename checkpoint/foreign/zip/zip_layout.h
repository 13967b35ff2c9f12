// SPDX-License-Identifier: Apache-2.0
//
// ZipLayout: a zip archive of stored entries, laid out from only their names and sizes: the position of each payload
// (at a multiple of 64 bytes from the archive's start, as in torch.save), and, once the CRCs are known, the headers
// around them. So payloads can be written in any order and in parallel. Sizes and offsets that do not fit in 32 bits
// use zip64 fields. Pure; equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_LAYOUT_H_
#define FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

class ZipLayout {
 public:
  // An entry of the archive. The name is its path with "/", and must have at most 65535 bytes; nbytes is its payload,
  // stored and not compressed.
  struct Member {
    std::string name;
    int64_t nbytes = 0;
  };

  // Lays out `members` in their order. Linear in their number; no member is opened or read.
  explicit ZipLayout(std::vector<Member> members);

  // Offsets are bytes from the start of the archive, `i` is an index into members(). nbytes() is the size of the whole
  // archive.
  const std::vector<Member>& members() const { return members_; }
  int64_t header_offset(size_t i) const { return header_offsets_[i]; }
  int64_t payload_offset(size_t i) const { return payload_offsets_[i]; }
  int64_t nbytes() const { return nbytes_; }

  // The bytes between header_offset(i) and payload_offset(i): local header, name, zip64 field, padding. `crc` is the
  // payload's CRC-32, zip's polynomial.
  std::string LocalHeader(size_t i, uint32_t crc) const;

  // The bytes after the last payload, from directory_offset() to nbytes(): central directory and end records. `crcs`
  // has the CRC of each member, in order.
  int64_t directory_offset() const { return directory_offset_; }
  std::string Directory(const std::vector<uint32_t>& crcs) const;

 private:
  std::vector<Member> members_;
  std::vector<int64_t> header_offsets_;
  std::vector<int64_t> payload_offsets_;
  int64_t directory_offset_ = 0;
  int64_t nbytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_ZIP_LAYOUT_H_
