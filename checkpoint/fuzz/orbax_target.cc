// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/checkpoint/foreign/orbax/directory_values.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_format.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_array.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_metadata.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"

namespace fsdp {
namespace {

constexpr size_t kCrcBytes = 4;

// A frame with its own length and CRC.
std::string ResealedFrame(std::string_view bytes) {
  std::string frame(bytes);
  if (frame.size() < 12 + kCrcBytes) return frame;
  for (int i = 0; i < 8; ++i) frame[4 + i] = static_cast<char>(frame.size() >> (8 * i));
  frame.resize(frame.size() - kCrcBytes);
  const uint32_t crc = Crc32c(frame);
  for (int i = 0; i < 4; ++i) frame.push_back(static_cast<char>(crc >> (8 * i)));
  return frame;
}

bool StaysInside(const std::string& path) {
  return !path.empty() && path[0] != '/' && ("/" + path + "/").find("/../") == path.npos;
}

void CheckNode(const OcdbtNode& node, size_t frame_bytes) {
  for (const OcdbtPlace& file : node.files()) Check(StaysInside(file.file), "a data file is elsewhere");
  const auto most = static_cast<size_t>(OcdbtBodyLimit(static_cast<int64_t>(frame_bytes)));
  size_t inline_bytes = 0;
  (void)node.VisitValues([&](std::string_view key, const OcdbtValue& value) {
    Check(key.size() <= kMaxOcdbtKeyBytes, "a key is too long");
    Check(value.file < static_cast<int64_t>(node.files().size()), "no such file");
    Check(value.file >= 0 || value.bytes.size() == value.nbytes, "a value is not in the node");
    inline_bytes += value.bytes.size();
    return absl::OkStatus();
  });
  Check(inline_bytes <= most, "values are larger than the node");
  (void)node.VisitChildren([&](const OcdbtChild& child) {
    Check(child.key.compare(0, child.prefix.size(), child.prefix) == 0, "a key has not the prefix of its subtree");
    Check(StaysInside(child.place.file), "a node is elsewhere");
    return absl::OkStatus();
  });
}

}  // namespace

bool FuzzOcdbt(std::string_view bytes) {
  (void)ParseOcdbtManifest(bytes);
  const std::string frame = ResealedFrame(bytes);
  const absl::StatusOr<OcdbtManifest> manifest = ParseOcdbtManifest(frame);
  if (manifest.ok()) {
    Check(manifest->root.nbytes == 0 || StaysInside(manifest->root.file), "the root is elsewhere");
    return true;
  }
  const absl::StatusOr<OcdbtNode> node = OcdbtNode::Parse(frame, "");
  if (node.ok()) CheckNode(*node, frame.size());
  return node.ok();
}

// The input is a text, a NUL and a chunk: the metadata of an array and its first chunk or shard, or _METADATA.
bool FuzzZarr(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view text = bytes.substr(0, end);
  const std::string_view chunk = bytes.substr(std::min(end + 1, bytes.size()));
  (void)ParseOrbaxTree(text);
  absl::StatusOr<ZarrMetadata> metadata = ParseZarray(text);
  const bool is_v2 = metadata.ok();
  if (!is_v2) metadata = ParseZarrJson(text);
  if (!metadata.ok()) return false;
  const int rank = metadata->shape.rank();
  Check(metadata->chunk.rank() == rank && metadata->chunk.numel() > 0, "chunks do not divide the array");
  Check(static_cast<int>(metadata->strides.size()) == rank, "a chunk has other dimensions");
  if (!metadata->dtype) return true;
  const std::string first = metadata->KeyOf(std::vector<int64_t>(rank, 0));
  if (metadata->shape.numel() > 0) Check(metadata->IndexOfKey(first).has_value(), "a key is not read back");
  const ScratchDirectory scratch;
  scratch.Write(is_v2 ? "zarr/a/.zarray" : "zarr/a/zarr.json", text);
  scratch.Write("zarr/a/" + first, chunk);
  const auto values = OpenDirectoryValues(scratch / "zarr");
  Check(values.ok(), "a directory cannot be listed");
  ChunkMemory memory;
  const absl::StatusOr<ZarrArray> array = ZarrArray::Open(**values, "a", 0, memory);
  Check(array.ok(), "metadata can be read only once");
  constexpr int64_t kMostElements = 512;
  const int64_t numel = std::min(metadata->shape.numel(), kMostElements);
  std::vector<std::byte> elements(numel * SizeOf(*metadata->dtype));
  return array->Read({0, numel}, elements.data()).ok();
}

}  // namespace fsdp
