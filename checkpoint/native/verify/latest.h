// SPDX-License-Identifier: Apache-2.0
//
// A ROOT of checkpoints: its steps, and the newest that verifies. A step is a directory with a name that StepName
// makes, or with the name under which its own manifest says that it was saved (SaveOptions::name); all other names in a
// ROOT, copies of checkpoints too, are ignored. retention.h decides which steps are deleted.
#ifndef FSDP_CHECKPOINT_NATIVE_VERIFY_LATEST_H_
#define FSDP_CHECKPOINT_NATIVE_VERIFY_LATEST_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/verify/verify.h"

namespace fsdp {

// The path of the newest committed step of ROOT that verifies; every byte of it is read, and of newer steps that do not
// verify. `skipped`, if not null, gets a sentence for each entry that may be a step or not, as far as this host knows,
// and for each newer step that does not verify, or cannot be read. kNotFound, with all reasons, when no step verifies
// and every entry could be read. kResourceExhausted when this process has too few descriptors or
// too little memory to read a newer step: an older one would only be taken for want of them. If `root` is itself a
// checkpoint, it is verified and returned; kDataLoss when it is damaged.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root, std::vector<std::string>* skipped = nullptr);

// A committed step of a ROOT.
struct RootStep {
  int64_t step = 0;
  std::string name;  // of its directory

  auto operator<=>(const RootStep&) const = default;
};

// An entry of a ROOT that cannot be read here, so that it may be a step with a name of its own.
struct UnreadEntry {
  std::string name;
  absl::Status status;

  std::string ToString() const;  // "checkpoint-500 cannot be read here: REASON"
};

// The committed steps of ROOT, oldest first, not verified; empty when ROOT does not exist. `unread`, if not null, gets
// the entries that cannot be read; otherwise the first of them is an error, but for those that this user may not read.
absl::StatusOr<std::vector<RootStep>> ListSteps(const std::string& root, std::vector<UnreadEntry>* unread = nullptr);

// Their names.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root,
                                                         std::vector<UnreadEntry>* unread = nullptr);

// OK when every byte of the step `name` of ROOT verifies and its manifest is of this name and step. kDataLoss with the
// first problem if it is damaged; another code (IsUnread) if it is not, but cannot be read here.
absl::Status CheckStep(const std::string& root, const std::string& name, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_VERIFY_LATEST_H_
