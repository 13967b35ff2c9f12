// SPDX-License-Identifier: Apache-2.0
//
// OcdbtValues: the keys of an OCDBT database (ocdbt_format.h), of its newest version. Opening reads the manifest and
// every node of the B+tree, and checks what is stated twice: the order of keys, their number, the sizes of nodes, that
// each value is inside its data file. A key then costs about 40 bytes of memory, and its value is read on request.
// Values are raw bytes without a checksum; nodes and manifest have CRCs.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_VALUES_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_VALUES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/orbax/key_values.h"

namespace fsdp {

inline constexpr char kOcdbtManifestName[] = "manifest.ocdbt";

// Opens the database in `directory`. Errors name the file, the place in it and what is wrong.
absl::StatusOr<std::unique_ptr<KeyValues>> OpenOcdbtValues(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_OCDBT_VALUES_H_
