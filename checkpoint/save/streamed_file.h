// SPDX-License-Identifier: Apache-2.0
//
// StreamedFile: a file of whole tensors that come one after another and are not kept: laid out from names and shapes,
// then filled in whatever order they come.
#ifndef FSDP_CHECKPOINT_SAVE_STREAMED_FILE_H_
#define FSDP_CHECKPOINT_SAVE_STREAMED_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/tree/tree_file.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class StreamedFile {
 public:
  // Makes `tree`.name in `directory` with everything but the elements of `tree`'s tensors, whose readers are not used.
  // `files` and `pool` must outlive it.
  static absl::StatusOr<std::unique_ptr<StreamedFile>> Create(FileSystem& files, std::string directory, TreeFile tree,
                                                              const Manifest& identity, ThreadPool& pool);

  // Writes all tensors of `part`, whole, and fsyncs. kInvalidArgument, by name, for one that the file was not laid out
  // for.
  absl::Status Write(const StateDict& part);

  // What WriteTreeFile says of a file. kDataLoss, by name, where a tensor was not written once.
  absl::StatusOr<Manifest> Finish() &&;

 private:
  StreamedFile(FileSystem& files, std::string directory, ThreadPool& pool)
      : files_(files), directory_(std::move(directory)), pool_(pool) {}

  FileSystem& files_;
  const std::string directory_;
  ThreadPool& pool_;
  Manifest made_;
  std::vector<int64_t> offsets_;      // by tensor of made_
  std::map<StateKey, size_t> index_;  // into made_'s tensors
  Manifest written_;                  // tensors as made_'s, with the intervals written so far
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_STREAMED_FILE_H_
