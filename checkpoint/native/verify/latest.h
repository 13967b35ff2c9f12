// SPDX-License-Identifier: Apache-2.0
//
// A ROOT of checkpoints: its steps, and the newest that verifies. Only names that StepName makes are steps; all other
// names in a ROOT are ignored. retention.h decides which steps are deleted.
#ifndef FSDP_CHECKPOINT_NATIVE_VERIFY_LATEST_H_
#define FSDP_CHECKPOINT_NATIVE_VERIFY_LATEST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/verify/verify.h"

namespace fsdp {

// The path of the newest committed step of ROOT that verifies; every byte of it is read, and of newer steps that do not
// verify. `skipped`, if not null, gets a sentence for each newer step that does not verify. kNotFound, with all
// reasons, when no step verifies. If `root` is itself a checkpoint, it is verified and returned; kDataLoss when it is
// damaged.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root, std::vector<std::string>* skipped = nullptr);

// The names of the committed steps of ROOT (step-* directories), oldest first, not verified; empty when ROOT does not
// exist.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root);

// OK when every byte of the step `name` of ROOT verifies and its manifest has the step in its name; else kDataLoss with
// the first problem.
absl::Status CheckStep(const std::string& root, const std::string& name, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_VERIFY_LATEST_H_
