// SPDX-License-Identifier: Apache-2.0
//
// WriteNpz: writes a model as one archive that np.load reads, with the layout of np.savez: a stored entry NAME.npy for
// each tensor, C order, little-endian. Pulled block by block in bounded memory; elements are at multiples of 64 bytes,
// so that a mapped file has aligned arrays. Equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_WRITER_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Creates the file `path` from the model tensors of `contents` (shards are ignored) and `read`. It appears whole, by
// rename of a hidden sibling, or not at all. kInvalidArgument, before anything is written, names a tensor whose dtype
// NumPy's files cannot name, or whose name cannot be an archive entry's.
absl::Status WriteNpz(const std::string& path, const StateDict& contents, const PayloadReader& read,
                      const FormatWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_WRITER_H_
