// SPDX-License-Identifier: Apache-2.0
//
// LocateRestDamage: where, among the bytes of a file that are not payload, the damage is that their one digest shows.
#ifndef FSDP_CHECKPOINT_VERIFY_REST_DAMAGE_H_
#define FSDP_CHECKPOINT_VERIFY_REST_DAMAGE_H_

#include <string>
#include <vector>

#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/verify/range_names.h"

namespace fsdp {

struct RestDamage {
  ByteRange range;
  std::string what;  // `HDF5 object header of tensor "model/w"`, "HDF5 global heap", "HDF5 padding"
};

// Reads `gaps`, the parts of `file` (manifest.files[index]) that are not payload, and names the structures of HDF5 in
// them that are not whole. Empty when that cannot be told.
std::vector<RestDamage> LocateRestDamage(const File& file, const Manifest& manifest, int index, RangeNames& names,
                                         const std::vector<ByteRange>& gaps);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_REST_DAMAGE_H_
