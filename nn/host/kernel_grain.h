// SPDX-License-Identifier: Apache-2.0
//
// How much of an elementwise kernel is worth another thread, and views of a part of its operands.
#ifndef FSDP_NN_HOST_KERNEL_GRAIN_H_
#define FSDP_NN_HOST_KERNEL_GRAIN_H_

#include <algorithm>
#include <cstdint>

#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Elements: some 10 microseconds of the cheaper kernels, which is several times what a thread takes to begin.
inline constexpr int64_t kElementGrain = int64_t{1} << 14;

// Rows of `columns` elements.
inline int64_t RowGrain(int64_t columns) { return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns)); }

// Elements `interval` of `t`; undefined if `t` is.
inline Tensor Piece(const Tensor& t, const Interval& interval) { return t.defined() ? t.Slice(interval) : t; }

// Rows `rows` of `t`, whose rows have `columns` elements, as a matrix; undefined if `t` is.
inline Tensor RowPiece(const Tensor& t, const Interval& rows, int64_t columns) {
  if (!t.defined()) return t;
  return t.Slice({rows.begin * columns, rows.end * columns}).View({rows.size(), columns});
}

}  // namespace fsdp

#endif  // FSDP_NN_HOST_KERNEL_GRAIN_H_
