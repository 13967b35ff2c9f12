// SPDX-License-Identifier: Apache-2.0
//
// The input is the sizes of two files in 4 bytes each, and three files: metadata.pkl, and the item "model" of two
// ranks.
#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/torch_checkpointing_source.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"

namespace fsdp {

// Without checksums, so that most mutations are read.
bool FuzzTorchCheckpointing(std::string_view bytes) {
  constexpr size_t kHeader = 8;
  constexpr int64_t kMostRead = int64_t{1} << 20;
  if (bytes.size() < kHeader) return false;
  const size_t metadata = std::min<size_t>(ZipInteger(bytes, 0, 4), bytes.size() - kHeader);
  const size_t first = std::min<size_t>(ZipInteger(bytes, 4, 4), bytes.size() - kHeader - metadata);
  const ScratchDirectory directory;
  directory.Write("run/metadata.pkl", bytes.substr(kHeader, metadata));
  directory.Write("run/model_0.pt", bytes.substr(kHeader + metadata, first));
  directory.Write("run/model_1.pt", bytes.substr(kHeader + metadata + first));
  const auto source = OpenTorchCheckpointingSource(directory / "run", {.verify = false, .skip_links = true});
  if (!source.ok()) return false;
  bool is_read = true;
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const int64_t nbytes = tensor->shape.numel() * SizeOf(tensor->dtype);
    Check(nbytes >= 0 && nbytes <= static_cast<int64_t>(bytes.size()), "a tensor is larger than its files");
    const int64_t read = std::min(tensor->shape.numel(), kMostRead);
    std::vector<char> elements(read * SizeOf(tensor->dtype));
    is_read = (*source)->Read(key, {0, read}, elements.data()).ok() && is_read;
    is_read = (*source)->Read(key, {read / 3, read}, elements.data()).ok() && is_read;
  }
  return is_read;
}

}  // namespace fsdp
