// SPDX-License-Identifier: Apache-2.0
//
// The input is the stage of ZeRO, '2' or '3', the size of the model file in 4 bytes, that file, and the optimizer's.
#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/scratch_directory.h"

namespace fsdp {

// Without checksums, so that most mutations are read.
bool FuzzDeepSpeed(std::string_view bytes) {
  constexpr size_t kHeader = 5;
  constexpr int64_t kMostRead = int64_t{1} << 20;  // views may be larger than their storages
  if (bytes.size() < kHeader) return false;
  const size_t model = std::min<size_t>(ZipInteger(bytes, 1, 4), bytes.size() - kHeader);
  const ScratchDirectory directory;
  directory.Write(bytes[0] == '3' ? "tag/zero_pp_rank_0_mp_rank_00_model_states.pt" : "tag/mp_rank_00_model_states.pt",
                  bytes.substr(kHeader, model));
  directory.Write("tag/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", bytes.substr(kHeader + model));
  const auto source = OpenDeepSpeedSource(directory / "tag", {.verify = false, .skip_links = true});
  if (!source.ok()) return false;
  for (const auto& [key, value] : (*source)->contents().entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const int64_t numel = tensor->shape.numel();
    Check(numel >= 0, "a tensor has a negative size");
    const int64_t read = std::min(numel, kMostRead);
    std::vector<char> elements(read * SizeOf(tensor->dtype));
    (void)(*source)->Read(key, {0, read}, elements.data());
    (void)(*source)->Read(key, {read / 3, read}, elements.data());
  }
  return true;
}

}  // namespace fsdp
