// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint.h5 alone, without the manifest that has its digests: for example a file that was sent or downloaded. Its
// metadata are parsed in a confined process, its values read with pread. Without digests, values cannot be checked.
// Only files that hold the bytes themselves (those of FULL checkpoints) and have the tree of docs/checkpoint_format.md
// are read, and only datasets: a link that is not followed is never dropped in silence.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The contents of the file, as a manifest of one file without digests, records and units, and the links that are not
// followed. kInvalidArgument for a rank file, for a file with virtual datasets of other files, and for a dataset that
// no checkpoint has; kDataLoss as ListUntrustedHdf5.
absl::StatusOr<SourceDescription> DescribeHdf5File(const std::string& path);

// The file as a TensorSource of format "hdf5 file". kInvalidArgument, naming them, when links are not followed, unless
// options.skip_links is set; also then when there is nothing else in the file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenHdf5FileSource(const std::string& path,
                                                                 const TensorSourceOptions& options = {});

// Of every source that this opens, and of its driver.
const FormatTraits& Hdf5FileTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_SOURCE_H_
