// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint.h5 without the manifest that has its digests: for example a file that was sent or downloaded. Its
// metadata is parsed in a confined process, its values are read with pread. Without digests, values cannot be checked.
// Reads only files that hold the bytes themselves (FULL checkpoints) in the tree of docs/checkpoint_format.md, and only
// datasets: a link that is not followed is never dropped in silence.
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
// followed. kInvalidArgument for a rank file, for a file with virtual datasets over other files, and for a dataset that
// does not exist in checkpoints; kDataLoss as ListUntrustedHdf5.
absl::StatusOr<SourceDescription> DescribeHdf5File(const std::string& path);

// The file as a TensorSource of format "hdf5 file". kInvalidArgument, with their names, when links are not followed,
// unless options.skip_links is set; even then if there is nothing else in the file.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenHdf5FileSource(const std::string& path,
                                                                 const TensorSourceOptions& options = {});

// The traits of every source that this opens, and of its driver.
const FormatTraits& Hdf5FileTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_SOURCE_H_
