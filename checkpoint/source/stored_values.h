// SPDX-License-Identifier: Apache-2.0
//
// StoredTensor, StoredText: which bytes of which file hold a value. Every format's description of itself is made of
// them (SourceDescription); the manifest of our own adds digests. Files are indices into a list that the object around
// the values has.
#ifndef FSDP_CHECKPOINT_SOURCE_STORED_VALUES_H_
#define FSDP_CHECKPOINT_SOURCE_STORED_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The longest text that is written or read. Texts are held in memory as a whole.
inline constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

// Elements `interval` of a tensor, which follow each other without gaps from byte `offset` of file `file` on.
struct StoredInterval {
  Interval interval;
  int file = 0;
  int64_t offset = 0;
};

struct StoredTensor {
  StateKey key;
  std::vector<std::string> aliases;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<StoredInterval> intervals;  // sorted by begin
  std::string unknown;  // of a manifest: members that this release does not know, as JSON ", \"a\": 1"
};

struct StoredText {
  StateKey key;
  int file = 0;
  ByteRange range;  // of its UTF-8; may be empty
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_STORED_VALUES_H_
