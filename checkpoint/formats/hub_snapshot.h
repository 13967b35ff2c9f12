// SPDX-License-Identifier: Apache-2.0
//
// HubSnapshotOf: the directory of a model's files in the cache of the Hugging Face hub.
#ifndef FSDP_CHECKPOINT_FORMATS_HUB_SNAPSHOT_H_
#define FSDP_CHECKPOINT_FORMATS_HUB_SNAPSHOT_H_

#include <string>

namespace fsdp {

// The newest snapshot of `model`, a directory "models--OWNER--NAME", by its refs/main. If that is missing, or is a path
// instead of a name, any snapshot; if there is no snapshot, "snapshots/REVISION" in `model`.
std::string HubSnapshotOf(const std::string& model);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_HUB_SNAPSHOT_H_
