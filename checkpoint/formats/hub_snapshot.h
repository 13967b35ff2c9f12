// SPDX-License-Identifier: Apache-2.0
//
// HubSnapshotOf: the directory of a model's files in the cache of the Hugging Face hub.
#ifndef FSDP_CHECKPOINT_FORMATS_HUB_SNAPSHOT_H_
#define FSDP_CHECKPOINT_FORMATS_HUB_SNAPSHOT_H_

#include <string>

namespace fsdp {

// The newest snapshot of `model`, a directory "models--OWNER--NAME", by its refs/main, which must be the name of a file
// and not lead elsewhere; without it any snapshot, and "snapshots/REVISION" in it if there is none.
std::string HubSnapshotOf(const std::string& model);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_HUB_SNAPSHOT_H_
