// SPDX-License-Identifier: Apache-2.0
//
// The input is a model; "data" next to it has 64 bytes of external data.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_source.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"

namespace fsdp {

// The smallest elements are 2 bits, read as a byte; a number in a typed field is a byte at least, and 8 in memory.
bool FuzzOnnx(std::string_view bytes) {
  constexpr int64_t kDataBytes = 64;
  static const auto* const scratch = new ScratchDirectory;
  static const std::string data = scratch->Write("model/data", std::string(kDataBytes, '\1'));
  const auto source =
      OpenOnnxFile(std::make_unique<ByteFile>(std::string(bytes)), *scratch / "model", {.skip_links = true});
  if (!source.ok()) return false;
  bool is_read = true;
  const int64_t most = 8 * std::max<int64_t>(std::ssize(bytes), kDataBytes);
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    const int64_t numel = tensor.shape.numel();
    const int64_t nbytes = numel * SizeOf(tensor.dtype);
    Check(nbytes >= 0 && nbytes <= most, "a tensor is larger than its files");
    std::vector<char> elements(nbytes);
    is_read = (*source)->Read(key, {0, numel}, elements.data()).ok() && is_read;
    is_read = (*source)->Read(key, {numel / 3, numel}, elements.data()).ok() && is_read;
  }
  for (const std::string& file : (*source)->files()) {
    Check(file == "bytes" || file.find("..") == file.npos, "external data is elsewhere");
  }
  return is_read;
}

}  // namespace fsdp
