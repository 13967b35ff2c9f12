// SPDX-License-Identifier: Apache-2.0
//
// ReduceOp: how a collective combines the ranks' elements. As torch.distributed.ReduceOp, as far as training needs it.
#ifndef FSDP_COLLECTIVES_GROUP_REDUCE_OP_H_
#define FSDP_COLLECTIVES_GROUP_REDUCE_OP_H_

#include <cstdint>
#include <string_view>

namespace fsdp {

// Values go through shared memory between ranks; never renumber. min and max work on floats and integers; integer sums
// wrap.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAvg = 1,  // the sum in rank order, then one division by the number of ranks; float dtypes only
  kMin = 2,  // NaN wins
  kMax = 3,  // NaN wins
};

// "sum", "avg", "min", "max". A literal, as torch.distributed spells it in lower case.
std::string_view ReduceOpName(ReduceOp op);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_REDUCE_OP_H_
