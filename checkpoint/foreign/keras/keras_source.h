// SPDX-License-Identifier: Apache-2.0
//
// OpenKerasSource: the weights of Keras 3 as a TensorSource: a .keras archive, the model.weights.h5 in it or without
// it, the .weights.json of several such files, and legacy .h5 files. Names are Keras's own (keras_names.h), and
// tensors as Keras holds them: the kernel of a dense layer is [in, out]. HDF5 is parsed in a confined process
// (confined_hdf5.h), values are read with pread; the CRC of an archive's file is compared.
#ifndef FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The ending of the index of several files.
inline constexpr char kKerasIndexEnding[] = ".weights.json";

// kInvalidArgument names what cannot be read and why: one file of several, compressed or chunked values, links unless
// options.skip_links leaves them out; kDataLoss the damage and its file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenKerasSource(const std::string& path,
                                                              const TensorSourceOptions& options = {});

// The traits of every source that this opens, and of its driver.
const FormatTraits& KerasTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_SOURCE_H_
