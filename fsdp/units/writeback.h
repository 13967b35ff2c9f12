// SPDX-License-Identifier: Apache-2.0
//
// The writeback check of _flat_param.py: ShardedParameter::data is a view of its unit's shard, and only the shard is
// all-gathered. If a program replaces the view with its own tensor, the new values are copied into the shard; they are
// never silently dropped.
#ifndef FSDP_FSDP_UNITS_WRITEBACK_H_
#define FSDP_FSDP_UNITS_WRITEBACK_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Copies the data of every sharded parameter that was replaced into the shard, on `stream`, and makes the parameter's
// data a view again. kInvalidArgument, naming the parameter, for data of another size or dtype, or none. Does not
// block: the replaced tensor stays alive until the copy has run. `gathered`, by unit: it has a copy of its parameters
// that ranks gathered together; kFailedPrecondition if data of such a unit was replaced.
absl::Status WriteBackReplaced(const UnitStore& units, const std::vector<bool>& gathered, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_WRITEBACK_H_
