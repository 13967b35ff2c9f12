// SPDX-License-Identifier: Apache-2.0
//
// One file that several processes write: WriteTreeFile makes it with everything but the elements of tensors, and then
// each process puts in the elements that it has, wherever it cuts them. Each part is an extent of its own.
#ifndef FSDP_CHECKPOINT_TREE_TREE_PARTS_H_
#define FSDP_CHECKPOINT_TREE_TREE_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/tree/payload_writer.h"
#include "fsdp/checkpoint/tree/tree_file.h"

namespace fsdp {

// Where the tensors of `made`, what WriteTreeFile returned for a shared file, begin in it; in the order of the tree.
std::vector<int64_t> TensorOffsets(const Manifest& made);

// Writes the intervals of `tensors` into the file `name` of `directory` and fsyncs it. `offsets` are those of whole
// tensors. Returns the tensors with their intervals, and the file with the extents of these alone: one that begins
// within a page is cut where the next page begins, so that all but its ends can be written directly. `barrier`, which
// may be empty, is called once, unless the file cannot be opened.
absl::StatusOr<Manifest> WriteTreeParts(FileSystem& files, const std::string& directory, const std::string& name,
                                        const std::vector<TreeFile::TensorPart>& tensors,
                                        const std::vector<int64_t>& offsets, const WriteBarrier& barrier,
                                        ThreadPool& pool);

// Puts what the processes wrote into `made`. kDataLoss when a tensor is not covered exactly once.
absl::Status MergeTreeParts(const std::vector<Manifest>& parts, Manifest& made);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TREE_TREE_PARTS_H_
