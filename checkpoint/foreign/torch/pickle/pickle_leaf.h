// SPDX-License-Identifier: Apache-2.0
//
// PickleLeaf: a value that one opcode creates by itself: None, a number, a string, a global, the empty tuple. The
// parsed Pickle stores only the offset of that opcode, and decodes it again on every access: a pickle is mostly leaves,
// and they must not cost more than their own bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_LEAF_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_LEAF_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_input.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_opcode.h"

namespace fsdp {

struct PickleLeaf {
  PickleKind kind = PickleKind::kNone;
  // The member of its kind; views are parts of the input.
  int64_t integer = 0;  // kInt, and kBool: 0 or 1
  double real = 0;
  std::string_view text = {};    // kString, kBytes, kByteArray, kBigInt; for a kGlobal the name in its module
  std::string_view module = {};  // kGlobal
};

// True for the opcodes that create a leaf.
bool IsLeaf(PickleOpcode opcode);

// Consumes the operands of `opcode`, for which IsLeaf is true, and returns the value. Errors as PickleInput.
absl::StatusOr<PickleLeaf> TakeLeaf(PickleOpcode opcode, PickleInput& input);

// The leaf whose opcode is at byte `place` of `bytes`. Precondition: TakeLeaf has succeeded there before.
PickleLeaf LeafAt(std::string_view bytes, uint32_t place);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_LEAF_H_
