// SPDX-License-Identifier: Apache-2.0
//
// UnitParts: where the parts of a unit (Unit::Parts, one for each dtype) are in the memory that they share. Pure
// arithmetic, for the plan of memory and for the runtime.
//
// Unsharded, they share a slot. A rank's shards travel together, so that a unit of any number of dtypes is one
// all-gather of bytes: a row for each rank, in which each part has a place.
//
//   slot   | float32 [padded_numel] | bfloat16 [padded_numel] | uint8 [padded_numel] |
//   rows   | float32 [shard_numel], bfloat16, uint8 of rank 0 | of rank 1 | ...
#ifndef FSDP_FSDP_UNITS_UNIT_PARTS_H_
#define FSDP_FSDP_UNITS_UNIT_PARTS_H_

#include <cstdint>
#include <vector>

#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct UnitParts {
  struct Part {
    Unit* unit;
    int64_t slot_offset = 0;  // in bytes, as all below
    int64_t row_offset = 0;

    // The part's place in a slot, in a dtype that it is unsharded in, and in a row.
    Tensor InSlot(const Buffer& slot, DType dtype) const;
    Tensor InRow(const Buffer& row, DType dtype) const;

    // From its place in the first row on to the end of `rows`, for RowCopy with a stride of row_bytes.
    Tensor InRows(const Buffer& rows, DType dtype) const;
  };

  // Bytes an element of the widest dtype that `unit` is ever unsharded in.
  static int64_t ItemSize(const Unit& unit);

  explicit UnitParts(Unit& unit);

  std::vector<Part> parts;
  int64_t slot_bytes = 0;
  int64_t row_bytes = 0;  // a multiple of every dtype's size
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_PARTS_H_
