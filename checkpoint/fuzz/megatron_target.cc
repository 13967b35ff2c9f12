// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/megatron/dist_state.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"

namespace fsdp {

// Every tensor of the state is a run of elements of one stored tensor, and no two are of the same elements.
bool FuzzMegatron(std::string_view bytes) {
  absl::StatusOr<DcpMetadata> metadata = ParseDcpMetadata(bytes);
  if (!metadata.ok()) return false;
  DistStateInput input;
  input.entries = std::move(metadata->entries);
  input.tensor = [&](int i) -> const DcpTensor& { return metadata->tensors[i]; };
  input.metadata_bytes = static_cast<int64_t>(bytes.size());
  const absl::StatusOr<TorchState> state = MakeDistState(std::move(input));
  if (!state.ok()) return false;
  std::vector<int64_t> ends(metadata->tensors.size(), 0);
  int64_t tensors = 0;
  for (const auto& [key, value] : state->contents.entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const TorchTensorPart* const part = (*state->FindLeaf(key))->tensor_part();
    Check(part != nullptr, "a tensor is not in the files");
    const DcpTensor& stored = metadata->tensors[part->tensor];
    Check(part->offset == ends[part->tensor], "parts of a stack leave a gap or overlap");
    ends[part->tensor] += tensor->shape.numel();
    Check(ends[part->tensor] <= stored.shape.numel() && stored.dtype == tensor->dtype,
          "a part is outside of its stack");
    ++tensors;
  }
  return tensors > 0;
}

}  // namespace fsdp
