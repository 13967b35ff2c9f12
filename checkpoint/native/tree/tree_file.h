// SPDX-License-Identifier: Apache-2.0
//
// WriteTreeFile: writes one file of a checkpoint and makes it durable: lays it out, writes and digests the payload,
// fills in the record of a rank file, and syncs. Callers that have work between layout and writing use LaidOutFile.
//
// WriteTreeParts: several processes write the tensors of one file. WriteTreeFile makes the file without the elements of
// tensors (TreeFile::is_shared), and each process writes the intervals that it holds, cut anywhere. Each part is its
// own extent.
#ifndef FSDP_CHECKPOINT_NATIVE_TREE_TREE_FILE_H_
#define FSDP_CHECKPOINT_NATIVE_TREE_TREE_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/tree/payload_writer.h"
#include "fsdp/checkpoint/native/tree/tree_layout.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Reads the flat dataset `flat` of `tree`, which must outlive the reader.
BlockReader FlatBlockReader(const TreeFile& tree, int flat);

// Reads the elements of `tensor`, which must outlive the reader, as the bytes of an extent that begins with `first`.
BlockReader TensorBlockReader(const TreeFile::TensorPart& tensor, int64_t first);

// A file that is laid out but not written.
class LaidOutFile {
 public:
  // Lays `tree` out, which must outlive this.
  static absl::StatusOr<LaidOutFile> Create(const TreeFile& tree);

  // Like the result of Write, but with zero digests.
  StoredValues Describe() const;

  // Makes the file in `directory`. The result has the file, then the links, and the file's tensors and texts.
  // `write.later` is empty. An error of writing names the file; an error of an ElementReader is returned unchanged.
  absl::StatusOr<StoredValues> Write(FileSystem& files, const std::string& directory, ThreadPool& pool,
                                     const PayloadWriteOptions& write) const;

  // The same into `file`, which is empty.
  absl::StatusOr<StoredValues> Write(File& file, ThreadPool& pool, const PayloadWriteOptions& write) const;

 private:
  LaidOutFile(const TreeFile& tree, TreeLayout layout) : tree_(&tree), layout_(std::move(layout)) {}

  const TreeFile* tree_;
  TreeLayout layout_;
};

// LaidOutFile::Create followed by Write.
absl::StatusOr<StoredValues> WriteTreeFile(FileSystem& files, const std::string& directory, const TreeFile& tree,
                                           ThreadPool& pool, const PayloadWriteOptions& write);

// The offsets at which the tensors of a shared file begin, in the order of the tree. `made` is the result of
// WriteTreeFile.
std::vector<int64_t> TensorOffsets(const StoredValues& made);

// Writes the intervals of `tensors` into the file `name` of `directory` and fsyncs it. `offsets` are the offsets of
// whole tensors. Returns the tensors with their intervals, and the file with only their extents. An extent that begins
// within a page is cut at the next page, so that all but its ends can be written directly. `barrier`, which may be
// empty, is called exactly once, unless the file cannot be opened or has no size.
absl::StatusOr<StoredValues> WriteTreeParts(FileSystem& files, const std::string& directory, const std::string& name,
                                            const std::vector<TreeFile::TensorPart>& tensors,
                                            const std::vector<int64_t>& offsets, const WriteBarrier& barrier,
                                            ThreadPool& pool);

// Adds the parts that the processes wrote to `made`. kDataLoss when they do not cover a tensor exactly once.
absl::Status MergeTreeParts(const std::vector<StoredValues>& parts, StoredValues& made);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_TREE_TREE_FILE_H_
