// SPDX-License-Identifier: Apache-2.0
//
// VerifiedReader: reads bytes of a checkpoint's files; each block is read whole and compared with its digest before a
// call returns OK. A file is opened when it is first needed; its size and its record must then match the manifest, so a
// file of another rank or another save is noticed even if digests are ignored. Thread-safe.
#ifndef FSDP_CHECKPOINT_NATIVE_READ_VERIFIED_READER_H_
#define FSDP_CHECKPOINT_NATIVE_READ_VERIFIED_READER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/read/read_plan.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class VerifiedReader final {
 public:
  // kIgnore: bytes are not verified, and only the wanted ones are read.
  enum class Digests : uint8_t { kCompare, kIgnore };

  // `files` and `manifest` must outlive it.
  VerifiedReader(FileSystem& files, std::string directory, const Manifest& manifest, Digests digests);

  // Reads bytes `range`, inside one extent of files[index], to `out`; the contents of `out` are unspecified after an
  // error. kDataLoss names the file, the bytes of the damaged block and `what`, the value that they are part of.
  // Blocks.
  absl::Status Read(int index, const ByteRange& range, std::byte* out, absl::FunctionRef<std::string()> what);

  // Reads `blocks`, sorted by file and offset as PlanReads returns them, on the threads of `pool`, and writes their
  // pieces to BlockPiece::out, converted if the dtypes differ. Blocks until all is done. Returns the error of the first
  // block that has one, as Read does; `what` names the value of a piece.
  absl::Status ReadBlocks(const std::vector<BlockRead>& blocks, ThreadPool& pool,
                          const std::function<std::string(const BlockPiece&)>& what);

 private:
  absl::StatusOr<std::shared_ptr<const File>> Open(int index);
  absl::Status ReadBlock(const File& file, int index, const StoredExtent& extent, int64_t block,
                         const ByteRange& wanted, std::byte* out, absl::FunctionRef<std::string()> what);

  using PieceName = std::function<std::string(const BlockPiece&)>;

  // Compares a block and writes its pieces to their places. The bytes of both are in `read`, which begins at offset
  // `read_offset` of the file.
  absl::Status Deliver(const BlockRead& block, const std::byte* read, int64_t read_offset, const PieceName& what) const;

  // Copies the wanted bytes of the blocks from the page cache to their places, tile by tile, so that each byte is
  // digested and copied while it is in the core's cache. False when the page cache lacks some bytes, or elements are
  // converted.
  absl::StatusOr<bool> DeliverCached(const File& file, const BlockRun& run, const std::vector<BlockRead>& blocks,
                                     const PieceName& what);
  absl::StatusOr<bool> DeliverCachedBlock(int fd, const BlockRead& block, const PieceName& what);

  // kDataLoss, naming the file, the block's bytes and `what`, when `digest` is not the recorded one of block `block` of
  // `extent` in files[file].
  absl::Status Compare(int file, const StoredExtent& extent, int64_t block, const Digest& digest,
                       absl::FunctionRef<std::string()> what) const;
  absl::Status Compare(const BlockRead& block, const Digest& digest, const PieceName& what) const;

  // A verified block of which only a part was wanted. Small tensors share blocks, so the next Read often wants another
  // part.
  struct PartialBlock {
    int file = 0;
    int64_t offset = 0;
    BlockBuffers::Lease bytes;
  };
  std::shared_ptr<const PartialBlock> LastPartial();

  FileSystem& files_;
  const std::string directory_;
  const Manifest& manifest_;
  const bool verify_;
  BlockBuffers buffers_;

  std::mutex mutex_;
  // All guarded by mutex_.
  std::vector<std::shared_ptr<const File>> open_;  // by index; null if it is not open
  std::vector<bool> checked_;                      // by index
  std::deque<int> order_;                          // indexes of open files, the oldest first; at most kMaxOpenFiles
  std::shared_ptr<const PartialBlock> partial_;    // the last one; null before the first
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_READ_VERIFIED_READER_H_
