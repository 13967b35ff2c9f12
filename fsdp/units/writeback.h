// SPDX-License-Identifier: Apache-2.0
//
// The writeback check of _flat_param.py: a ShardedParameter is a view of its unit's shard, which is what is gathered. A
// program that lets one refer to memory of its own is heard, and never ignored.
#ifndef FSDP_FSDP_UNITS_WRITEBACK_H_
#define FSDP_FSDP_UNITS_WRITEBACK_H_

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Copies the data of every sharded parameter that was replaced by memory of its own back into the shard, on `stream`,
// and makes it a view again. kInvalidArgument, naming it, for one of another size or dtype.
absl::Status WriteBackReplaced(const UnitStore& units, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_WRITEBACK_H_
