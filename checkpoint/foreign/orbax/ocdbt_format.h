// SPDX-License-Identifier: Apache-2.0
//
// The manifest and the B+tree nodes of OCDBT, tensorstore's database of keys and values in a directory:
//
//   frame      magic, big-endian u32 | length of all u64 | version 0 | compression (0 none, 1 zstd) | body | CRC32C u32
//   manifest   which node is the root of each version; the last is the newest
//   node       height 0: keys with their values (bytes, or a range of a data file); else keys with child nodes
//
// Numbers are varints (ocdbt_cursor.h), tables are columns: one field of all entries, then the next. Keys and paths are
// compressed by the prefix that they share with the one before. Every number has a bound before it is used as a size.
// Pure: bytes in, a struct out.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_FORMAT_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_FORMAT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// Bounds of tensorstore itself.
inline constexpr uint64_t kMaxOcdbtKeyBytes = 65535;
inline constexpr uint64_t kMaxOcdbtPathBytes = 65535;
inline constexpr uint64_t kMaxOcdbtNodeEntries = 1024 * 1024;

// The longest frame of a node that is read. Its decoded size is bounded by its length (OcdbtBodyLimit).
inline constexpr int64_t kMaxOcdbtFrameBytes = int64_t{256} << 20;
int64_t OcdbtBodyLimit(int64_t frame_bytes);

// A range of a data file. `file` is relative to the directory of the database; its first `base_bytes` bytes are the
// directory of the files that a node there refers to ("ocdbt.process_0/").
struct OcdbtPlace {
  std::string file;
  size_t base_bytes = 0;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};

struct OcdbtManifest {
  std::string uuid;          // 16 bytes
  bool is_numbered = false;  // the versions are in files manifest.XXXXXXXXXXXXXXXX, and nothing below is set

  // The newest version. An empty root: there are no keys.
  uint64_t generation = 0;
  int height = 0;
  OcdbtPlace root;
  uint64_t keys = 0;
  uint64_t tree_bytes = 0;  // of all frames of nodes
};

// kDataLoss says what is wrong with `frame`, all bytes of the file; kUnimplemented for a later version of the format.
absl::StatusOr<OcdbtManifest> ParseOcdbtManifest(std::string_view frame);

// A value, of a leaf: `bytes` if `file` is negative, else a range of file number `file` of the node.
struct OcdbtValue {
  std::string_view bytes;
  int64_t file = -1;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};

struct OcdbtChild {
  std::string key;     // the first of the subtree, without the prefix of the node itself
  std::string prefix;  // what all keys of the subtree begin with; they are stored without it
  OcdbtPlace place;
};

class OcdbtNode {
 public:
  // Parses `frame`, whose data files are relative to `base` (OcdbtPlace::base_bytes of the place of the node). Errors
  // as ParseOcdbtManifest.
  static absl::StatusOr<OcdbtNode> Parse(std::string_view frame, std::string_view base);

  int height() const { return height_; }
  const std::vector<OcdbtPlace>& files() const { return files_; }

  // The entries of a leaf, in order, until `visit` returns an error, which is returned. Keys and bytes live as long as
  // the call.
  absl::Status VisitValues(
      const std::function<absl::Status(std::string_view key, const OcdbtValue& value)>& visit) const;

  // The same for the children of any other node.
  absl::Status VisitChildren(const std::function<absl::Status(const OcdbtChild& child)>& visit) const;

 private:
  absl::Status ParseBody(std::string_view base);

  std::string body_;
  int height_ = 0;
  std::vector<OcdbtPlace> files_;  // offset and nbytes are not set
  // Columns of the entries. Views are into body_, by offset, since a node moves.
  std::vector<uint64_t> prefix_bytes_, suffix_bytes_, subtree_prefix_bytes_;
  std::vector<uint64_t> file_, offset_, nbytes_;
  std::vector<bool> is_inline_;
  size_t keys_begin_ = 0, values_begin_ = 0;  // in body_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_FORMAT_H_
