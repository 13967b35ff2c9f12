// SPDX-License-Identifier: Apache-2.0
//
// ZipLayout: a zip archive of stored entries, laid out before a byte of them is known but their sizes: where each one's
// payload goes (at a multiple of 64 from the archive's start, as torch.save places them), and, once the CRCs are known,
// the headers around them. zip64 where a size or an offset asks for it. Pure; equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_TORCH_ZIP_ZIP_LAYOUT_H_
#define FSDP_CHECKPOINT_TORCH_ZIP_ZIP_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

class ZipLayout {
 public:
  struct Member {
    std::string name;
    int64_t nbytes = 0;
  };

  explicit ZipLayout(std::vector<Member> members);

  const std::vector<Member>& members() const { return members_; }
  int64_t header_offset(size_t i) const { return header_offsets_[i]; }
  int64_t payload_offset(size_t i) const { return payload_offsets_[i]; }
  int64_t nbytes() const { return nbytes_; }  // of the archive

  // What lies between header_offset(i) and payload_offset(i).
  std::string LocalHeader(size_t i, uint32_t crc) const;

  // What lies behind the last payload, from directory_offset() to nbytes().
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

#endif  // FSDP_CHECKPOINT_TORCH_ZIP_ZIP_LAYOUT_H_
