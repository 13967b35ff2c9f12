// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/hdf5/root_links.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"

namespace fsdp {
namespace {

// The little-endian number of `nbytes` at byte `at`; all ones if it is not in `head`.
uint64_t Unsigned(std::string_view head, size_t at, size_t nbytes = 8) {
  if (at > head.size() || head.size() - at < nbytes) return UINT64_MAX;
  uint64_t value = 0;
  for (size_t i = 0; i < nbytes; ++i)
    value |= static_cast<uint64_t>(static_cast<unsigned char>(head[at + i])) << (8 * i);
  return value;
}

// A link message: version 1, flags that say which fields there are, the length of the name, the name.
std::string LinkName(std::string_view message) {
  const uint64_t flags = Unsigned(message, 1, 1);
  if (Unsigned(message, 0, 1) != 1 || flags > 0x1f) return "";
  const size_t at = 2 + ((flags & 8) != 0 ? 1 : 0) + ((flags & 4) != 0 ? 8 : 0) + ((flags & 16) != 0 ? 1 : 0);
  const size_t length_bytes = size_t{1} << (flags & 3);
  const uint64_t length = Unsigned(message, at, length_bytes);
  if (length > message.size() || at + length_bytes > message.size() - length) return "";
  return std::string(message.substr(at + length_bytes, length));
}

// An object header of version 2: "OHDR", 2, flags, times and limits if the flags say so, the size of the messages; each
// has its type, size, flags, and perhaps a number.
std::vector<std::string> NamesInHeader(std::string_view head) {
  constexpr uint64_t kLinkMessage = 6;
  const uint64_t root = Unsigned(head, 36);
  if (root > head.size() || head.substr(root, 5) != "OHDR\2") return {};
  const uint64_t flags = Unsigned(head, root + 5, 1);
  if (flags > 0x3f) return {};
  size_t at = root + 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
  const uint64_t nbytes = Unsigned(head, at, size_t{1} << (flags & 3));
  at += size_t{1} << (flags & 3);
  if (at > head.size()) return {};
  const size_t end = at + std::min<uint64_t>(nbytes, head.size() - at);
  const size_t header_bytes = (flags & 4) != 0 ? 6 : 4;
  std::vector<std::string> names;
  while (at + header_bytes <= end) {
    const uint64_t type = Unsigned(head, at, 1);
    const uint64_t size = Unsigned(head, at + 1, 2);
    at += header_bytes;
    if (size > end - at) break;
    if (type == kLinkMessage) names.push_back(LinkName(head.substr(at, size)));
    at += size;
  }
  return names;
}

}  // namespace

// A local heap: "HEAP", its version 0, three zeros, the size of its data, the offset of free space, and the address of
// the data, which begins with an empty name; each name ends with a zero and fills a multiple of 8 bytes. Free space
// begins with two numbers.
std::vector<std::string> RootLinksOf(std::string_view head) {
  constexpr size_t kHeaderBytes = 32;
  constexpr size_t kVersionAt = 8;  // of the superblock
  if (head.size() > kVersionAt && head[kVersionAt] >= 2) return NamesInHeader(head);
  const size_t heap = head.find(std::string_view("HEAP\0", 5));
  if (heap == head.npos || heap + kHeaderBytes > head.size()) return {};
  const uint64_t nbytes = Unsigned(head, heap + 8);
  const uint64_t free = Unsigned(head, heap + 16);
  const uint64_t begin = Unsigned(head, heap + 24);
  if (begin > head.size() || nbytes > head.size()) return {};
  const std::string_view data = head.substr(begin, std::min(nbytes, free < nbytes ? free : nbytes));
  std::vector<std::string> names;
  for (size_t at = 8; at < data.size();) {
    const std::string_view name = data.substr(at, data.find('\0', at) - at);
    if (name.empty()) break;
    names.emplace_back(name);
    at += (name.size() / 8 + 1) * 8;
  }
  return names;
}

bool IsKerasHdf5(const PathProbe& probe) {
  if (!absl::StartsWith(probe.head, "\x89HDF\r\n\x1a\n")) return false;
  const std::vector<std::string> names = RootLinksOf(probe.head);
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (has("vars") || has("model_weights") || has("top_level_model_weights")) return true;
  const bool is_ours = has("model") || has("extra") || has("fsdp");
  return absl::EndsWith(probe.path, ".weights.h5") && !is_ours;
}

}  // namespace fsdp
