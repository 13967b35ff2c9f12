// SPDX-License-Identifier: Apache-2.0
//
// WriteHdf5View: an HDF5 file of a few kilobytes in which every tensor of a foreign checkpoint is a dataset, under the
// name that it would have in a checkpoint of ours. The bytes are not copied: a dataset consists of external segments of
// the checkpoint's own files, or, if a tensor was saved as boxes that cut rows, is a virtual dataset over datasets of
// such segments.
#ifndef FSDP_CHECKPOINT_CONVERT_HDF5_VIEW_H_
#define FSDP_CHECKPOINT_CONVERT_HDF5_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/input_paths.h"

namespace fsdp {

struct Hdf5ViewOptions {
  bool overwrite = false;           // replace an existing file; otherwise kAlreadyExists
  bool relative = false;            // name the checkpoint's files relative to the view, not by absolute paths
  TensorSourceOptions source = {};  // how the checkpoint is opened
  InputPaths also_read = {};        // files that the caller read for `source`: never `path`
};

struct Hdf5ViewReport {
  int64_t tensors = 0;  // shown
  int64_t nbytes = 0;   // of the file
  struct NotShown {
    std::string name;  // of the tensor: "model/w"
    std::string reason;
  };
  std::vector<NotShown> not_shown;
  std::string moves;  // a sentence: which moves of the files break the view, and how a moved one is opened
};

// Creates the file `path` for the checkpoint `source` (anything that OpenTensorSource opens), whose tensors have places
// (TensorSource::Places). The files of the checkpoint are named by absolute paths and must stay there; with `relative`
// they may be moved together with the view, and HDF5 finds them if it is set to look next to it. Texts, and numbers
// that the format stores as plain values, are copied. The file appears whole or not at all. kInvalidArgument for a
// source that is already HDF5; kFailedPrecondition, with `overwrite` or without, when `path` is an input or is inside a
// checkpoint (CheckOutput).
absl::StatusOr<Hdf5ViewReport> WriteHdf5View(const std::string& source, const std::string& path,
                                             const Hdf5ViewOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_HDF5_VIEW_H_
