// SPDX-License-Identifier: Apache-2.0
//
// Writes OCDBT manifests and nodes (ocdbt_format.h), uncompressed, for tests of databases that tensorstore never
// writes.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_TESTUTIL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/crc32c.h"

namespace fsdp {

inline constexpr uint32_t kTestManifestMagic = 0x0cdb3a2a;
inline constexpr uint32_t kTestNodeMagic = 0x0cdb20de;

inline std::string FixedBytes(uint64_t value, int nbytes) {
  std::string bytes;
  for (int i = 0; i < nbytes; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

inline std::string VarintBytes(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes.push_back(static_cast<char>(value | 128));
  return bytes + static_cast<char>(value);
}

// A frame around `body`. A test may pass another length than the right one.
inline std::string OcdbtFrame(uint32_t magic, const std::string& body, int64_t length = -1) {
  std::string frame;
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>(magic >> shift));
  constexpr int64_t kAround = 4 + 8 + 2 + 4;
  frame += FixedBytes(length >= 0 ? length : static_cast<int64_t>(body.size()) + kAround, 8);
  frame += VarintBytes(0) + VarintBytes(0) + body;
  return frame + FixedBytes(Crc32c(frame), 4);
}

// A table of data files, each without a base path.
inline std::string OcdbtFiles(const std::vector<std::string>& files) {
  std::string table = VarintBytes(files.size());
  for (size_t i = 1; i < files.size(); ++i) table += VarintBytes(0);
  for (const std::string& file : files) table += VarintBytes(file.size());
  for (size_t i = 0; i < files.size(); ++i) table += VarintBytes(0);
  for (const std::string& file : files) table += file;
  return table;
}

// A manifest with one version, whose root is bytes [offset, offset + nbytes) of `file`.
struct OcdbtTestManifest {
  std::string file = "d/nodes";
  uint64_t offset = 0;
  uint64_t nbytes = 0;
  int height = 0;
  uint64_t keys = 0;
  uint64_t tree_bytes = 0;
  uint64_t generation = 1;
  bool is_numbered = false;  // only the configuration

  std::string Frame() const {
    std::string body = std::string(16, 'u') + VarintBytes(is_numbered ? 1 : 0) + VarintBytes(1024) +
                       VarintBytes(1000000) + FixedBytes(4, 1) + VarintBytes(0);
    if (is_numbered) return OcdbtFrame(kTestManifestMagic, body);
    body += OcdbtFiles({file}) + VarintBytes(1) + VarintBytes(generation) + FixedBytes(height, 1) + VarintBytes(0);
    body += VarintBytes(offset) + VarintBytes(nbytes) + VarintBytes(keys) + VarintBytes(tree_bytes) + VarintBytes(0);
    return OcdbtFrame(kTestManifestMagic, body + FixedBytes(0, 8) + VarintBytes(0));
  }
};

// A leaf of keys with values in it.
inline std::string OcdbtLeaf(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string body = FixedBytes(0, 1) + OcdbtFiles({}) + VarintBytes(values.size());
  for (size_t i = 1; i < values.size(); ++i) body += VarintBytes(0);
  for (const auto& [key, value] : values) body += VarintBytes(key.size());
  for (const auto& [key, value] : values) body += key;
  for (const auto& [key, value] : values) body += VarintBytes(value.size());
  body += std::string(values.size(), '\0');
  for (const auto& [key, value] : values) body += value;
  return OcdbtFrame(kTestNodeMagic, body);
}

// A leaf with one value, bytes [offset, offset + nbytes) of `file`.
inline std::string OcdbtLeafOfFile(const std::string& key, const std::string& file, uint64_t offset, uint64_t nbytes) {
  return OcdbtFrame(kTestNodeMagic, FixedBytes(0, 1) + OcdbtFiles({file}) + VarintBytes(1) + VarintBytes(key.size()) +
                                        key + VarintBytes(nbytes) + FixedBytes(1, 1) + VarintBytes(0) +
                                        VarintBytes(offset));
}

// A node of height `height` over nodes of "d/nodes": the first key of each, its offset and its length.
struct OcdbtTestChild {
  std::string key;
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};
inline std::string OcdbtInterior(int height, const std::vector<OcdbtTestChild>& children) {
  std::string body = FixedBytes(height, 1) + OcdbtFiles({"d/nodes"}) + VarintBytes(children.size());
  for (size_t i = 1; i < children.size(); ++i) body += VarintBytes(0);
  for (const OcdbtTestChild& child : children) body += VarintBytes(child.key.size());
  body += std::string(children.size(), '\0');  // no common prefixes
  for (const OcdbtTestChild& child : children) body += child.key;
  body += std::string(children.size(), '\0');  // all in file 0
  for (const OcdbtTestChild& child : children) body += VarintBytes(child.offset);
  for (const OcdbtTestChild& child : children) body += VarintBytes(child.nbytes);
  return OcdbtFrame(kTestNodeMagic, body + std::string(3 * children.size(), '\0'));
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_TESTUTIL_H_
