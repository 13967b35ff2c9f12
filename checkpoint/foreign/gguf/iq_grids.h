// SPDX-License-Identifier: Apache-2.0
//
// The grids of ggml's IQ types: an index of a block selects a row, which is the magnitudes of 8 or 4 consecutive
// elements. A magnitude is a code of few bits, the first element's in the lowest, and kIQ2Values, kIQ3XXSValues, ...
// are the values of the codes. testdata/grids.json, by gguf-py, has every row of every grid.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_IQ_GRIDS_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_IQ_GRIDS_H_

#include <cstdint>

namespace fsdp {

// 8 elements of 2 bits.
extern const uint16_t kIQ2XXSGrid[256];
extern const uint16_t kIQ2XSGrid[512];
extern const uint16_t kIQ2SGrid[1024];
extern const uint16_t kIQ1Grid[2048];  // of IQ1_S and IQ1_M
inline constexpr float kIQ2Values[4] = {8, 25, 43, 0};
inline constexpr float kIQ1Values[4] = {-1, 0, 1, 0};

// 4 elements of 3 bits.
extern const uint16_t kIQ3XXSGrid[256];
extern const uint16_t kIQ3SGrid[512];
inline constexpr float kIQ3XXSValues[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr float kIQ3SValues[8] = {1, 3, 5, 7, 9, 11, 13, 15};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_IQ_GRIDS_H_
