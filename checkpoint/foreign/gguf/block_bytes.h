// SPDX-License-Identifier: Apache-2.0
//
// The numbers in ggml's blocks, which are little-endian and not aligned. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_BLOCK_BYTES_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_BLOCK_BYTES_H_

#include <cstddef>
#include <cstdint>

#include "fsdp/tensor/convert_elements.h"

namespace fsdp {

inline const uint8_t* BlockBytes(const std::byte* blocks) { return reinterpret_cast<const uint8_t*>(blocks); }

inline uint16_t BlockU16(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }
inline uint32_t BlockU32(const uint8_t* at) { return BlockU16(at) | static_cast<uint32_t>(BlockU16(at + 2)) << 16; }
inline float BlockF16(const uint8_t* at) { return Float16ToFloat(BlockU16(at)); }

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_BLOCK_BYTES_H_
