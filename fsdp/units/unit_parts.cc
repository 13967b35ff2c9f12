// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/unit_parts.h"

#include <algorithm>

namespace fsdp {
namespace {

constexpr int64_t kSlotAlignment = 64;  // a line of a cache
constexpr int64_t kRowAlignment = 16;   // the largest element

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

Tensor ViewOf(const Buffer& buffer, int64_t offset, DType dtype, int64_t numel) {
  return Tensor(buffer.Slice(offset, numel * SizeOf(dtype)), dtype, {numel});
}

}  // namespace

int64_t UnitParts::ItemSize(const Unit& unit) {
  const int64_t compute = SizeOf(unit.compute_dtype);
  return unit.settings.full_precision_in_eval ? std::max<int64_t>(compute, SizeOf(unit.dtype)) : compute;
}

UnitParts::UnitParts(Unit& unit) {
  for (Unit* part : unit.Parts()) {
    parts.push_back({part, RoundUp(slot_bytes, kSlotAlignment), RoundUp(row_bytes, kRowAlignment)});
    slot_bytes = parts.back().slot_offset + part->layout.padded_numel() * ItemSize(*part);
    row_bytes = parts.back().row_offset + part->layout.shard_numel() * ItemSize(*part);
  }
  row_bytes = RoundUp(row_bytes, kRowAlignment);
}

Tensor UnitParts::Part::InSlot(const Buffer& slot, DType dtype) const {
  return ViewOf(slot, slot_offset, dtype, unit->layout.padded_numel());
}

Tensor UnitParts::Part::InRow(const Buffer& row, DType dtype) const {
  return ViewOf(row, row_offset, dtype, unit->layout.shard_numel());
}

Tensor UnitParts::Part::InRows(const Buffer& rows, DType dtype) const {
  return ViewOf(rows, row_offset, dtype, (rows.nbytes() - row_offset) / SizeOf(dtype));
}

}  // namespace fsdp
