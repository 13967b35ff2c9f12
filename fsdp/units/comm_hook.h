// SPDX-License-Identifier: Apache-2.0
//
// CommHook: a program's own reduction of gradients, which replaces the default one with its divisions (FSDP1's
// register_comm_hook), and PyTorch's default and compressing hooks
// (torch/distributed/algorithms/_comm_hooks/default_hooks.py).
#ifndef FSDP_FSDP_UNITS_COMM_HOOK_H_
#define FSDP_FSDP_UNITS_COMM_HOOK_H_

#include <functional>

#include "absl/status/status.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct CommHook {
  // Reduces `grad`, a unit's whole padded gradient, over `group`, as work on `stream`. A sharded unit's result goes to
  // `output`, this rank's slice of `grad`; if `output` is undefined, to `grad` itself. It is undefined for units that
  // are not sharded and for packed gradients of partly frozen ones (ShardLayout::Packed).
  std::function<absl::Status(const Tensor& grad, const Tensor& output, ProcessGroup& group, Stream& stream)> reduce;

  // True if `reduce` casts by itself; `grad` then has the compute dtype. Otherwise it has the reduce dtype.
  bool low_precision = false;

  explicit operator bool() const { return static_cast<bool>(reduce); }
};

// The default reduction: a sum with divisions before and after.
CommHook DefaultCommHook();

// DefaultCommHook in `dtype` (float16 or bfloat16; PyTorch's fp16_compress_hook and bf16_compress_hook): cast, reduce,
// cast back. Allocates a copy of the gradient in `dtype` each time.
CommHook CompressCommHook(DType dtype);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_COMM_HOOK_H_
