// SPDX-License-Identifier: Apache-2.0
//
// Bytes in pickles of protocol 2, which has no opcode for them: _codecs.encode(text, "latin1").
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BYTES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BYTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"

namespace fsdp {

// The bytes of `text`, which is UTF-8, in Latin-1: each character is the byte with its number. nullopt if a character
// has a larger number.
std::optional<std::string> Latin1(std::string_view text);

// An upper bound on the length of BytesOfPickle: its cost.
int64_t MaxBytesOfPickle(PickleValue value);

// The bytes of a kBytes and of a call of _codecs.encode; nullopt for any other value.
std::optional<std::string> BytesOfPickle(PickleValue value);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BYTES_H_
