// SPDX-License-Identifier: Apache-2.0
//
// PlanReads: which blocks of which files hold what is wanted, so that each block is read and verified once, however
// many tensors lie in it and however they are cut. Pure; nobody is asked.
#ifndef FSDP_CHECKPOINT_SOURCE_READ_PLAN_H_
#define FSDP_CHECKPOINT_SOURCE_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// What is wanted of one block.
struct BlockPiece {
  ByteRange range;  // in the file
  DType stored = DType::kFloat32;
  DType wanted = DType::kFloat32;
  std::byte* out = nullptr;
  int read = 0;  // index into the reads, for messages
};

struct BlockRead {
  int file = 0;
  int extent = 0;
  int64_t block = 0;
  ByteRange range;  // the whole block
  std::vector<BlockPiece> pieces;
};

// Tensors of a manifest by key.
using TensorIndex = std::map<StateKey, size_t>;

// `reads` as blocks, in the order of files and offsets. The tensors must be covered (CheckCovered). kNotFound for a
// tensor that the manifest lacks, kInvalidArgument for elements outside of it.
absl::StatusOr<std::vector<BlockRead>> PlanReads(const Manifest& manifest, const TensorIndex& index,
                                                 const std::vector<TensorRead>& reads);

// Blocks [first, first + count) of a plan, which lie close together in one file: they are one read.
struct BlockRun {
  size_t first = 0;
  size_t count = 0;
  ByteRange range;
};

// `blocks` in runs of at most kBlockBytes; of each block all of it, or no more than its pieces.
enum class BlockParts : uint8_t { kWhole, kPieces };
std::vector<BlockRun> JoinBlocks(const std::vector<BlockRead>& blocks, BlockParts parts);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_READ_PLAN_H_
