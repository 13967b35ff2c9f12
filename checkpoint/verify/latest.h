// SPDX-License-Identifier: Apache-2.0
//
// A ROOT of checkpoints: its steps, and the newest that verifies. Only names that StepName makes are steps; whatever
// else is in a ROOT is not looked at. Which steps stay is retention.h's.
#ifndef FSDP_CHECKPOINT_VERIFY_LATEST_H_
#define FSDP_CHECKPOINT_VERIFY_LATEST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/verify/verify.h"

namespace fsdp {

// The newest committed step of ROOT that verifies, byte by byte. `skipped`, if not null, gets a sentence for each newer
// one that does not. kNotFound when there is none. A directory that is itself a checkpoint is returned as it is,
// verified.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root, std::vector<std::string>* skipped = nullptr);

// Names of the committed steps of ROOT (step-* directories), oldest first, unverified; empty when ROOT does not exist.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root);

// OK when the step `name` of ROOT verifies, byte by byte, and is the step that its name says; else kDataLoss with the
// first problem.
absl::Status CheckStep(const std::string& root, const std::string& name, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_LATEST_H_
