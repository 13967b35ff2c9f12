// SPDX-License-Identifier: Apache-2.0
//
// StoredTensor, StoredText: the bytes of files that hold a value. Descriptions of all formats consist of them
// (SourceDescription); our own manifest adds digests. Files are indices into a list in the object that contains the
// values.
#ifndef FSDP_CHECKPOINT_SOURCE_STORED_VALUES_H_
#define FSDP_CHECKPOINT_SOURCE_STORED_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The longest text that is written or read. Texts are whole in memory.
inline constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

// Elements `interval` of a tensor, stored without gaps from byte `offset` of file `file`.
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
