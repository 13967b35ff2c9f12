// SPDX-License-Identifier: Apache-2.0
//
// NarrowInteger: the integers of ml_dtypes with fewer than eight bits. NumPy, TensorStore and Flax store one in the low
// bits of each byte; the other bits are 0 or repeat the sign. They are read as int8 and uint8. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_NARROW_INTEGER_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_NARROW_INTEGER_H_

#include <cstddef>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

struct NarrowInteger {
  std::string_view name;  // "int4"
  int bits = 4;
  DType dtype = DType::kInt8;  // which has all its values
};

// Of "int4", "int2", "uint4" and "uint2"; nullopt for any other name.
std::optional<NarrowInteger> NarrowIntegerOfName(std::string_view name);

// `bytes`: the elements `interval` of an array, as they are stored; becomes numbers of `integer.dtype`. kDataLoss names
// the first byte that is not such a number, by its index in the array.
absl::Status WidenIntegers(const NarrowInteger& integer, const Interval& interval, std::byte* bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_NARROW_INTEGER_H_
