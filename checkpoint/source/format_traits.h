// SPDX-License-Identifier: Apache-2.0
//
// FormatTraits: the constants of a checkpoint format, which its driver and the sources that it opens have in common.
// Whoever needs to know whether a format can do something asks here and never for a format by name, so that a new
// format is one more table row and no new case.
#ifndef FSDP_CHECKPOINT_SOURCE_FORMAT_TRAITS_H_
#define FSDP_CHECKPOINT_SOURCE_FORMAT_TRAITS_H_

#include <string_view>
#include <vector>

namespace fsdp {

// Constants of a format. Strings have static storage.
struct FormatTraits {
  std::string_view name;           // in reports, in JSON and after --to=: "safetensors". Two drivers may share a name
  std::string_view headline = {};  // how `ckpt inspect` calls one: "a model in safetensors"

  // The contents of a directory of this format, for errors: "model.safetensors"; may be empty.
  std::string_view in_directory = {};

  std::string_view file = {};  // what a file of this format is called in errors: "a safetensors file"; may be empty

  std::vector<std::string_view> suffixes = {};  // a destination with one of these is a file of this format
  std::string_view model_file = {};  // name of a model in an export; empty: the exported directory is the checkpoint

  bool is_ours = false;      // this project's own format: with manifest, kind, units and a digest of every byte
  bool is_root = false;      // a directory of checkpoints of ours, of which Open takes the newest that verifies
  bool model_only = false;   // holds neither optimizer state nor extra values
  bool has_writers = false;  // TensorSource::world_size() is the number of ranks that wrote it
  bool is_hdf5 = false;      // HDF5 programs open its files as they are

  bool keeps_metadata = false;  // has a place for TensorSource::metadata(), or for a text that stands for them

  // A tensor is written as its bytes and a line about them, so it takes little memory beside its payload: no object of
  // HDF5, and no archive of its own.
  bool is_plain = false;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_FORMAT_TRAITS_H_
