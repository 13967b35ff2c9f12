// SPDX-License-Identifier: Apache-2.0
//
// KerasFiles: the HDF5 files of a checkpoint of Keras, as one listing: one file, one in an archive, or the files of
// an index.
#ifndef FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_FILES_H_
#define FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct KerasFiles {
  struct Part {
    std::unique_ptr<File> file;
    int64_t begin = 0;  // of the HDF5 file in it
  };

  std::vector<Part> parts;
  std::string index;                  // the path of the .weights.json; empty without
  std::string config;                 // config.json of an archive; empty without
  Hdf5Listing listing;                // of all parts; offsets count from Part::begin
  std::vector<int> part_of;           // by dataset of `listing`
  std::vector<std::string> left_out;  // other entries of the archive, and links
  std::shared_ptr<EntryChecksums> checksums = std::make_shared<EntryChecksums>();  // of an archive's entries
};

// Errors as OpenKerasSource, but for left_out, which is not judged.
absl::StatusOr<KerasFiles> OpenKerasFiles(const std::string& path, const TensorSourceOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_FILES_H_
