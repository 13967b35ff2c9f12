// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/ocdbt_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_cursor.h"
#include "fsdp/checkpoint/foreign/orbax/zstd_frame.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// A frame is: magic (4 bytes, big-endian), length of the frame (8), version and compression (varints), the body, which
// may be one zstd frame, and a CRC32C of all bytes before it (4). All other numbers are little-endian or varints.
// Source: tensorstore, kvstore/ocdbt/format (data_file_id.cc, manifest.cc, btree.cc, codec_util.cc).
constexpr uint32_t kManifestMagic = 0x0cdb3a2a;
constexpr uint32_t kNodeMagic = 0x0cdb20de;
constexpr size_t kCrcBytes = 4;
constexpr uint64_t kZstd = 1;

// All paths of a table together: prefixes make a few bytes a long path.
constexpr size_t kMaxTableBytes = size_t{64} << 20;

absl::Status Truncated(const char* what) {
  return absl::DataLossError(absl::StrCat("its ", what, " is truncated, or has a number out of range"));
}

// Checks the frame and returns its body.
absl::StatusOr<std::string> OpenFrame(std::string_view frame, uint32_t magic) {
  OcdbtCursor cursor(frame);
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) found = found << 8 | static_cast<uint32_t>(cursor.Fixed(1));
  const uint64_t length = cursor.Fixed(8);
  if (!cursor.ok() || cursor.left() < kCrcBytes) return Truncated("frame");
  if (found != magic) {
    return absl::DataLossError(absl::StrCat("it begins with ", absl::Hex(found, absl::kZeroPad8), ", expected ",
                                            absl::Hex(magic, absl::kZeroPad8)));
  }
  if (length != frame.size()) {
    return absl::DataLossError(absl::StrCat("it states a length of ", length, " bytes, and has ", frame.size()));
  }
  const uint64_t recorded = OcdbtCursor(frame.substr(frame.size() - kCrcBytes)).Fixed(kCrcBytes);
  const uint32_t crc = Crc32c(frame.substr(0, frame.size() - kCrcBytes));
  if (crc != recorded) {
    return absl::DataLossError(absl::StrCat("its CRC32C is ", absl::Hex(crc, absl::kZeroPad8), " != recorded ",
                                            absl::Hex(recorded, absl::kZeroPad8)));
  }
  const uint64_t version = cursor.Varint();
  const uint64_t compression = cursor.Varint();
  if (!cursor.ok() || cursor.left() < kCrcBytes) return Truncated("frame");
  if (version != 0) return absl::UnimplementedError(absl::StrCat("it has version ", version, ", expected 0"));
  if (compression > kZstd) {
    return absl::UnimplementedError(absl::StrCat("it has compression ", compression, ", expected 0 or 1, zstd"));
  }
  const std::string_view body = frame.substr(frame.size() - cursor.left(), cursor.left() - kCrcBytes);
  if (compression != kZstd) return std::string(body);
  return InflateZstdUpTo(body, OcdbtBodyLimit(static_cast<int64_t>(frame.size())));
}

// A path of a data file comes from the file: it must stay inside of the directory.
absl::Status CheckInside(std::string_view path) {
  for (const absl::string_view part : absl::StrSplit(absl::string_view(path.data(), path.size()), '/')) {
    if (CheckFileName(std::string(part)).ok()) continue;
    return absl::DataLossError(
        absl::StrCat("its data file ", Quote(path), " is not a path of names inside of the directory"));
  }
  return absl::OkStatus();
}

// The paths of data files, each without what it has in common with the one before: first all lengths of common
// prefixes, then of suffixes, then of base paths, then the suffixes themselves. The base path of a file is the part of
// its name that the nodes in it need not repeat: it is put before their own paths.
absl::StatusOr<std::vector<OcdbtPlace>> ReadFileTable(OcdbtCursor& cursor, std::string_view base) {
  const uint64_t count = cursor.Varint(kMaxOcdbtNodeEntries);
  const std::vector<uint64_t> prefix = cursor.Varints(count == 0 ? 0 : count - 1, kMaxOcdbtPathBytes);
  const std::vector<uint64_t> suffix = cursor.Varints(count, kMaxOcdbtPathBytes);
  const std::vector<uint64_t> base_bytes = cursor.Varints(count, kMaxOcdbtPathBytes);
  if (!cursor.ok()) return Truncated("table of data files");
  std::vector<OcdbtPlace> files(count);
  std::string path;
  size_t table_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t shared = i == 0 ? 0 : prefix[i - 1];
    if (shared > path.size()) return absl::DataLossError("a data file shares more of its path than there is");
    path.resize(shared);
    path.append(cursor.Bytes(suffix[i]));
    table_bytes += base.size() + path.size();
    if (!cursor.ok() || table_bytes > kMaxTableBytes) return Truncated("table of data files");
    if (base_bytes[i] > path.size()) return absl::DataLossError("a base path is longer than its data file's path");
    files[i].file = absl::StrCat(std::string(base), path);
    files[i].base_bytes = base.size() + base_bytes[i];
  }
  return files;
}

}  // namespace

// Metadata costs a bounded multiple of its size. Orbax writes nodes of up to 95 MiB, which zstd makes a tenth or so.
int64_t OcdbtBodyLimit(int64_t frame_bytes) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  constexpr int64_t kMost = int64_t{256} << 20;
  return std::min(kMost, kLeast + 8 * frame_bytes);
}

// Only the newest version is of interest, but the columns are stored one after the other, so all of them are read.
absl::StatusOr<OcdbtManifest> ParseOcdbtManifest(std::string_view frame) {
  FSDP_ASSIGN_OR_RETURN(const std::string body, OpenFrame(frame, kManifestMagic));
  OcdbtCursor cursor(body);
  OcdbtManifest manifest;
  manifest.uuid = std::string(cursor.Bytes(16));
  const uint64_t kind = cursor.Varint();
  cursor.Varint();  // the largest inline value
  cursor.Varint();  // the largest decoded node: a promise of the writer
  const uint64_t arity_log2 = cursor.Fixed(1);
  const uint64_t compression = cursor.Varint();
  if (compression == kZstd) cursor.Fixed(4);  // the level
  if (!cursor.ok()) return Truncated("configuration");
  if (kind > 1 || compression > kZstd || arity_log2 < 1 || arity_log2 > 16) {
    return absl::UnimplementedError(absl::StrCat("its configuration is unknown: manifest kind ", kind, ", compression ",
                                                 compression, ", arity of versions 2^", arity_log2));
  }
  manifest.is_numbered = kind == 1;
  if (manifest.is_numbered) {
    if (cursor.left() != 0) return absl::DataLossError("there are bytes behind its configuration");
    return manifest;
  }
  FSDP_ASSIGN_OR_RETURN(std::vector<OcdbtPlace> files, ReadFileTable(cursor, ""));
  const uint64_t versions = cursor.Varint(uint64_t{1} << arity_log2);
  if (!cursor.ok() || versions == 0) return Truncated("list of versions");
  const std::vector<uint64_t> generations = cursor.Varints(versions);
  const std::string_view heights = cursor.Bytes(versions);
  const std::vector<uint64_t> file = cursor.Varints(versions);
  const std::vector<uint64_t> offset = cursor.Varints(versions);
  const std::vector<uint64_t> nbytes = cursor.Varints(versions);
  const std::vector<uint64_t> keys = cursor.Varints(versions);
  const std::vector<uint64_t> tree_bytes = cursor.Varints(versions);
  cursor.Varints(versions);    // bytes of values elsewhere
  cursor.Bytes(8 * versions);  // times
  if (!cursor.ok()) return Truncated("list of versions");
  for (size_t i = 1; i < versions; ++i) {
    if (generations[i] <= generations[i - 1]) return absl::DataLossError("its versions are not in order");
  }
  const size_t newest = versions - 1;
  manifest.generation = generations[newest];
  manifest.height = static_cast<unsigned char>(heights[newest]);
  manifest.keys = keys[newest];
  manifest.tree_bytes = tree_bytes[newest];
  if (nbytes[newest] == 0 || offset[newest] == UINT64_MAX) return manifest;  // without keys
  if (file[newest] >= files.size()) return absl::DataLossError("its root is in a data file that it does not name");
  // Of the others nothing is read: the root of a version without keys has no path.
  manifest.root = std::move(files[file[newest]]);
  FSDP_RETURN_IF_ERROR(CheckInside(manifest.root.file));
  manifest.root.offset = offset[newest];
  manifest.root.nbytes = nbytes[newest];
  return manifest;
}

absl::StatusOr<OcdbtNode> OcdbtNode::Parse(std::string_view frame, std::string_view base) {
  OcdbtNode node;
  FSDP_ASSIGN_OR_RETURN(node.body_, OpenFrame(frame, kNodeMagic));
  FSDP_RETURN_IF_ERROR(node.ParseBody(base));
  return node;
}

// Columns again: lengths of the prefixes and suffixes of all keys, the suffixes, then for a leaf lengths and kinds of
// values, files and offsets of those outside, and the inline values; for an inner node files, offsets, lengths and
// three sums per child. Nothing is copied: the columns of numbers are kept, and offsets of the text in body_.
absl::Status OcdbtNode::ParseBody(std::string_view base) {
  OcdbtCursor cursor(body_);
  height_ = static_cast<int>(cursor.Fixed(1));
  FSDP_ASSIGN_OR_RETURN(files_, ReadFileTable(cursor, base));
  for (const OcdbtPlace& file : files_) FSDP_RETURN_IF_ERROR(CheckInside(file.file));
  const uint64_t count = cursor.Varint(kMaxOcdbtNodeEntries);
  if (!cursor.ok() || count == 0) return Truncated("list of keys");
  prefix_bytes_ = cursor.Varints(count - 1, kMaxOcdbtKeyBytes);
  prefix_bytes_.insert(prefix_bytes_.begin(), 0);
  suffix_bytes_ = cursor.Varints(count, kMaxOcdbtKeyBytes);
  if (height_ > 0) subtree_prefix_bytes_ = cursor.Varints(count, kMaxOcdbtKeyBytes);
  keys_begin_ = body_.size() - cursor.left();
  uint64_t length = 0;  // of the key
  for (size_t i = 0; cursor.ok() && i < count; ++i) {
    if (prefix_bytes_[i] > length) return absl::DataLossError("a key shares more than there is of the one before");
    length = prefix_bytes_[i] + suffix_bytes_[i];
    if (length > kMaxOcdbtKeyBytes) return absl::DataLossError("a key is longer than 65535 bytes");
    if (height_ > 0 && subtree_prefix_bytes_[i] > length) {
      return absl::DataLossError("the common prefix of a subtree is longer than its first key");
    }
    cursor.Bytes(suffix_bytes_[i]);
  }
  if (!cursor.ok()) return Truncated("list of keys");
  is_inline_.assign(count, false);
  size_t placed = count;  // entries that have a place in a file
  if (height_ == 0) {
    nbytes_ = cursor.Varints(count, INT64_MAX);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t kind = cursor.Fixed(1);
      if (kind > 1) return absl::UnimplementedError(absl::StrCat("a value has kind ", kind, ", expected 0 or 1"));
      is_inline_[i] = cursor.ok() && kind == 0;
      placed -= is_inline_[i] ? 1 : 0;
    }
  }
  file_ = cursor.Varints(placed);
  offset_ = cursor.Varints(placed, INT64_MAX);
  if (height_ > 0) {
    nbytes_ = cursor.Varints(count, INT64_MAX);
    for (int column = 0; column < 3; ++column) cursor.Varints(count);  // keys, tree bytes, value bytes of subtrees
  }
  values_begin_ = body_.size() - cursor.left();
  for (size_t i = 0; height_ == 0 && cursor.ok() && i < count; ++i) {
    if (is_inline_[i]) cursor.Bytes(nbytes_[i]);
  }
  if (!cursor.ok()) return Truncated("list of values");
  if (cursor.left() != 0) return absl::DataLossError("there are bytes behind its last value");
  // Checked here, so that the visitors need no checks.
  const bool is_known = std::all_of(file_.begin(), file_.end(), [&](uint64_t file) { return file < files_.size(); });
  return is_known ? absl::OkStatus() : absl::DataLossError("a value is in a data file that the node does not name");
}

absl::Status OcdbtNode::VisitValues(
    const std::function<absl::Status(std::string_view key, const OcdbtValue& value)>& visit) const {
  std::string key;
  size_t key_at = keys_begin_;
  size_t value_at = values_begin_;
  // The files and offsets have an element only for each value that is not inline.
  size_t placed = 0;
  for (size_t i = 0; height_ == 0 && i < suffix_bytes_.size(); ++i) {
    key.resize(prefix_bytes_[i]);
    key.append(body_, key_at, suffix_bytes_[i]);
    key_at += suffix_bytes_[i];
    OcdbtValue value = {.bytes = {}, .nbytes = nbytes_[i]};
    if (is_inline_[i]) {
      value.bytes = std::string_view(body_).substr(value_at, nbytes_[i]);
      value_at += nbytes_[i];
    } else {
      value.file = static_cast<int64_t>(file_[placed]);
      value.offset = offset_[placed++];
    }
    FSDP_RETURN_IF_ERROR(visit(key, value));
  }
  return absl::OkStatus();
}

absl::Status OcdbtNode::VisitChildren(const std::function<absl::Status(const OcdbtChild& child)>& visit) const {
  OcdbtChild child;
  size_t key_at = keys_begin_;
  for (size_t i = 0; height_ > 0 && i < suffix_bytes_.size(); ++i) {
    child.key.resize(prefix_bytes_[i]);
    child.key.append(body_, key_at, suffix_bytes_[i]);
    key_at += suffix_bytes_[i];
    child.prefix = child.key.substr(0, subtree_prefix_bytes_[i]);
    child.place = files_[file_[i]];
    child.place.offset = offset_[i];
    child.place.nbytes = nbytes_[i];
    FSDP_RETURN_IF_ERROR(visit(child));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
