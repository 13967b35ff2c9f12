// SPDX-License-Identifier: Apache-2.0
//
// Rows of bfloat16, apart in memory, to dense float32 and back; for matrices whose rows are too short to call
// tensor/convert.h for each.
#ifndef FSDP_NN_HOST_BFLOAT16_ROWS_H_
#define FSDP_NN_HOST_BFLOAT16_ROWS_H_

#include <cstdint>

namespace fsdp {

struct Rows {
  uint16_t* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next
};

// Writes rows * cols floats.
void WidenRows(const Rows& from, float* to);

// Rounds to nearest even; a NaN stays a NaN.
void RoundRows(const float* from, const Rows& to);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_BFLOAT16_ROWS_H_
