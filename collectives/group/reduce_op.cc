// SPDX-License-Identifier: Apache-2.0
//
// Names as in torch.distributed, in lower case, for messages.
#include "fsdp/collectives/group/reduce_op.h"

namespace fsdp {

std::string_view ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown";
}

}  // namespace fsdp
