// SPDX-License-Identifier: Apache-2.0
//
// FormatTraits: the constants of a checkpoint format, which its driver and the sources that it opens have in common.
// Code that depends on a property of a format uses these traits and never compares names, so that a new format is one
// more table row and no new case.
#ifndef FSDP_CHECKPOINT_SOURCE_FORMAT_TRAITS_H_
#define FSDP_CHECKPOINT_SOURCE_FORMAT_TRAITS_H_

#include <string_view>
#include <vector>

namespace fsdp {

// Constants of a format. Strings have static storage.
struct FormatTraits {
  std::string_view name;           // in reports, in JSON and after --to=: "safetensors". Two drivers may share a name
  std::string_view headline = {};  // its name in `ckpt inspect`: "a model in safetensors"

  // The contents of a directory of this format, for errors: "model.safetensors"; may be empty.
  std::string_view in_directory = {};

  std::string_view file = {};  // name of a file of this format in errors: "a safetensors file"; may be empty

  std::vector<std::string_view> suffixes = {};  // a destination with one of these is a file of this format
  std::string_view model_file = {};  // name of a model in an export; empty: the exported directory is the checkpoint

  bool is_ours = false;      // this project's own format: with manifest, kind, units and a digest of every byte
  bool is_root = false;      // a directory of checkpoints of ours, of which Open takes the newest that verifies
  bool model_only = false;   // its writer holds neither optimizer state nor extra values
  bool has_writers = false;  // TensorSource::world_size() is the number of ranks that wrote it
  bool is_hdf5 = false;      // HDF5 programs can open its files

  bool keeps_metadata = false;  // can store TensorSource::metadata(), or a text in its place
  bool keeps_step = false;      // its writer stores FormatContents::step as TensorSource::step() reads it

  bool has_blocks = false;  // has quantized types, in blocks: TensorSourceOptions::keep_quantized

  bool has_layout = false;  // structure decides which values are a model: TensorSource::layout()

  // A tensor is written as its bytes and a line about them, so it takes little memory in addition to its payload: no
  // HDF5 object and no archive per tensor.
  bool is_plain = false;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_FORMAT_TRAITS_H_
