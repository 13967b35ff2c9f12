// SPDX-License-Identifier: Apache-2.0
//
// OpenNpzSource: an archive of NumPy (np.savez, np.savez_compressed) as a TensorSource: each NAME.npy in it is the
// model tensor NAME, as is a file NAME.npy by itself (np.save), without a CRC. Stored entries are read in place,
// compressed ones are inflated as they are read; arrays in Fortran order and big-endian ones become row-major and
// little-endian. CRCs are compared. Nothing is ever executed: an array of Python objects is a pickle, and is not read.
#ifndef FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Reads the directory of the archive and the header of each array. kInvalidArgument, with their names, when arrays are
// not tensors (texts, Python objects, structures), unless options.skip_links leaves them out; kDataLoss when headers,
// sizes or CRCs contradict each other.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpzSource(const std::string& path,
                                                            const TensorSourceOptions& options = {});

// The same for an open file, whose path appears in messages: for tests and fuzzing.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpzFile(std::unique_ptr<File> file,
                                                          const TensorSourceOptions& options);

// The traits of every source that this opens, and of its driver.
const FormatTraits& NpzTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_SOURCE_H_
