// SPDX-License-Identifier: Apache-2.0
//
// VerifiedReader: bytes of a checkpoint's files, each block read whole and compared with its digest before anybody sees
// it. Files are opened when they are first needed; then their size and their record must be what the manifest says, so
// a file of another rank or another save is noticed even where digests are not compared. Thread-safe.
#ifndef FSDP_CHECKPOINT_SOURCE_VERIFIED_READER_H_
#define FSDP_CHECKPOINT_SOURCE_VERIFIED_READER_H_

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
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/source/read_plan.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class VerifiedReader final {
 public:
  // kIgnore: bytes are passed on as they are.
  enum class Digests : uint8_t { kCompare, kIgnore };

  // `files` and `manifest` must outlive it.
  VerifiedReader(FileSystem& files, std::string directory, const Manifest& manifest, Digests digests);

  // Opens and checks files[index] now.
  absl::Status Check(int index) { return Open(index).status(); }

  // Bytes `range`, which lie in one extent of files[index], to `out`; on error `out` holds anything. kDataLoss names
  // the file, the damaged block's bytes and `what`, the value that they belong to.
  absl::Status Read(int index, const ByteRange& range, std::byte* out, absl::FunctionRef<std::string()> what);

  // Reads `blocks`, which lie in the order of files and offsets, on the threads of `pool`, and puts their pieces in
  // their places, converted where the dtypes differ. Errors as Read's, of the first block that has one; `what` says
  // which value a piece is of.
  absl::Status ReadBlocks(const std::vector<BlockRead>& blocks, ThreadPool& pool,
                          const std::function<std::string(const BlockPiece&)>& what);

 private:
  absl::StatusOr<std::shared_ptr<const File>> Open(int index);
  absl::Status ReadBlock(const File& file, int index, const StoredExtent& extent, int64_t block,
                         const ByteRange& wanted, std::byte* out, absl::FunctionRef<std::string()> what);

  using PieceName = std::function<std::string(const BlockPiece&)>;

  // Compares a block and delivers its pieces; both are among the bytes `read`, which begin at `read_offset` of the
  // file.
  absl::Status Deliver(const BlockRead& block, const std::byte* read, int64_t read_offset, const PieceName& what) const;

  // Takes blocks that are wanted whole from the page cache to their places, tile by tile, so that each byte is digested
  // while it is hot. False when they are not wanted so, or not all there.
  absl::StatusOr<bool> DeliverCached(const File& file, const BlockRun& run, const std::vector<BlockRead>& blocks,
                                     const PieceName& what) const;

  // kDataLoss, naming the file, the block's bytes and `what`, when `digest` is not the recorded one of block `block` of
  // `extent` in files[file].
  absl::Status Compare(int file, const StoredExtent& extent, int64_t block, const Digest& digest,
                       absl::FunctionRef<std::string()> what) const;
  absl::Status Compare(const BlockRead& block, const Digest& digest, const PieceName& what) const;

  // A block of which only a part was wanted. Small tensors share blocks, so the next one often wants another part.
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
  std::vector<std::shared_ptr<const File>> open_;  // by index; null where it is not open
  std::vector<bool> checked_;                      // by index
  std::deque<int> order_;                          // of opening; no more than a process may have open
  std::shared_ptr<const PartialBlock> partial_;    // the one read last
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_VERIFIED_READER_H_
