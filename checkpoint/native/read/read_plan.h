// SPDX-License-Identifier: Apache-2.0
//
// PlanReads: finds the blocks of files that hold the wanted elements, so that each block is read and verified once,
// regardless of how many tensors share it and how they are cut. A pure function of the manifest: no I/O, no
// communication.
//
//   TensorRead --intervals of the manifest--> bytes of files --cut at blocks--> BlockPiece --by block--> BlockRead
#ifndef FSDP_CHECKPOINT_NATIVE_READ_READ_PLAN_H_
#define FSDP_CHECKPOINT_NATIVE_READ_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Wanted bytes of one block, all of one tensor.
struct BlockPiece {
  ByteRange range;  // in the file
  DType stored = DType::kFloat32;
  DType wanted = DType::kFloat32;
  std::byte* out = nullptr;  // destination of its elements, converted to `wanted`
  int read = 0;              // index into the reads, for messages
};

// A block with all wanted pieces of it.
struct BlockRead {
  int file = 0;                    // index into Manifest::files
  int extent = 0;                  // index into the file's extents
  int64_t block = 0;               // of the extent
  ByteRange range;                 // the whole block
  std::vector<BlockPiece> pieces;  // at least one; by offset
};

// Index into Manifest::tensors by key.
using TensorIndex = std::map<StateKey, size_t>;

// `reads` as blocks, in the order of files and offsets. The tensors must be covered (CheckCovered). kNotFound for a
// tensor that the manifest lacks, kInvalidArgument for elements outside of it.
absl::StatusOr<std::vector<BlockRead>> PlanReads(const Manifest& manifest, const TensorIndex& index,
                                                 const std::vector<TensorRead>& reads);

// Blocks [first, first + count) of a plan, which are close together in one file and are read by one transfer.
struct BlockRun {
  size_t first = 0;
  size_t count = 0;
  ByteRange range;
};

// `blocks` in runs of at most kBlockBytes. kWhole: a run covers its blocks whole, as comparing digests requires;
// kPieces: only from the first to the last wanted byte.
enum class BlockParts : uint8_t { kWhole, kPieces };
std::vector<BlockRun> JoinBlocks(const std::vector<BlockRead>& blocks, BlockParts parts);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_READ_READ_PLAN_H_
