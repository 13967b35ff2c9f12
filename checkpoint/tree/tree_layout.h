// SPDX-License-Identifier: Apache-2.0
//
// LayOutTree: where the bytes of a state dict, or of a part of it, go in one HDF5 file. The tree is that of the format:
// /model/<fqn>, /optim/state/<fqn>/<state>, /optim/param_groups, /extra/<name>; in rank files also /fsdp/record, and
// /flat/<unit>/... where the rank's shards are flat.
#ifndef FSDP_CHECKPOINT_TREE_TREE_LAYOUT_H_
#define FSDP_CHECKPOINT_TREE_TREE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/hdf5/hdf5_file.h"
#include "fsdp/checkpoint/storage/memory_file.h"

namespace fsdp {

// A record takes a multiple of this many bytes, so that HDF5 aligns it to 4096: to find it without HDF5, look there.
inline constexpr int64_t kRecordAlignment = 4096;

struct TreeContents {
  struct TensorPart {
    StateKey key;
    DType dtype = DType::kFloat32;
    Shape shape;
    Interval interval;               // the part of it that this file holds
    std::vector<VirtualPart> parts;  // if any, the file shows the tensor and holds nothing of it
  };
  // One long dataset of a unit's flat shard.
  struct FlatPart {
    std::string path;
    std::string unit;
    DType dtype = DType::kFloat32;
    int64_t numel = 0;
  };
  struct Text {
    StateKey key;
    int64_t nbytes = 0;
  };
  std::vector<TensorPart> tensors;
  std::vector<FlatPart> flats;
  std::vector<Text> texts;
  int64_t record_bytes = 0;  // 0: no record
  std::string warning;       // attribute of the root group; empty: none
};

struct TreeLayout {
  MemoryFile image;                // every byte that is not payload
  int64_t nbytes = 0;              // of the file
  std::vector<ByteRange> tensors;  // by index of TreeContents::tensors; empty where there is no payload
  std::vector<ByteRange> flats;
  std::vector<ByteRange> texts;  // whole datasets, at least one byte each
  std::optional<ByteRange> record;
};

absl::StatusOr<TreeLayout> LayOutTree(const TreeContents& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TREE_TREE_LAYOUT_H_
