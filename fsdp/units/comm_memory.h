// SPDX-License-Identifier: Apache-2.0
//
// CheckCommMemory: what a program's own AllGatherComm or ReduceScatterComm allocated, before a collective uses it.
#ifndef FSDP_FSDP_UNITS_COMM_MEMORY_H_
#define FSDP_FSDP_UNITS_COMM_MEMORY_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// kInvalidArgument, naming the unit, `comm` ("AllGatherComm") and both sides, unless `memory` has `numel` elements of
// `dtype`, on the device of the shard group.
absl::Status CheckCommMemory(const Tensor& memory, DType dtype, const Unit& unit, int64_t numel, std::string_view comm);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_COMM_MEMORY_H_
