// SPDX-License-Identifier: Apache-2.0
//
// A ROOT of checkpoints: its steps, the newest that verifies, and retention. Only names that StepName makes are steps;
// whatever else is in a ROOT is not looked at.
#ifndef FSDP_CHECKPOINT_LATEST_H_
#define FSDP_CHECKPOINT_LATEST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// The newest committed step of ROOT that verifies, byte by byte. `skipped`, if not null, gets a sentence for each newer
// one that does not. kNotFound when there is none. A directory that is itself a checkpoint is returned as it is,
// verified.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root, std::vector<std::string>* skipped = nullptr);

// Names of the committed steps of ROOT (step-* directories), oldest first, unverified; empty when ROOT does not exist.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root);

// Deletes all but the newest `keep_last` steps of ROOT: each is renamed away first, so no step-* name ever denotes
// something partial. Where none of those that stay has its manifest and all its files, the newest that has them stays
// too. kInvalidArgument when `keep_last` is less than 1. One process calls it.
absl::Status PruneCheckpoints(const std::string& root, int keep_last);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_LATEST_H_
