// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/flax/flax_source.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"

namespace fsdp {

bool FuzzFlax(std::string_view bytes) {
  const auto source = OpenFlaxFile(std::make_unique<ByteFile>(std::string(bytes)), {.skip_links = true});
  if (!source.ok()) return false;
  bool is_read = true;
  int64_t all = 0;
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const int64_t numel = tensor->shape.numel();
    const int64_t nbytes = numel * SizeOf(tensor->dtype);
    Check(nbytes >= 0 && nbytes <= static_cast<int64_t>(bytes.size()), "an array is larger than its file");
    all += nbytes;
    std::vector<char> elements(nbytes);
    is_read = (*source)->Read(key, {0, numel}, elements.data()).ok() && is_read;
    is_read = (*source)->Read(key, {numel / 3, numel}, elements.data()).ok() && is_read;
  }
  Check(all <= static_cast<int64_t>(bytes.size()), "arrays share bytes");
  return is_read;
}

}  // namespace fsdp
