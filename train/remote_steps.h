// SPDX-License-Identifier: Apache-2.0
//
// RemoteSteps: the steps of a run in the object store of --upload, for the start of a run (run_start.h). Only rank 0
// queries the store; it downloads a step to checkpoint_dir, and all ranks read it there.
#ifndef FSDP_TRAIN_REMOTE_STEPS_H_
#define FSDP_TRAIN_REMOTE_STEPS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

class RemoteSteps {
 public:
  // Opens the store; without --upload there are no steps. Returns the errors of OpenObjectStore.
  static absl::StatusOr<RemoteSteps> Open(const TrainOptions& options);

  // Downloads the newest step beyond `step` that verifies to checkpoint_dir, verified on its way, and returns its path;
  // "" without one. A directory of the same name did not verify, and is set aside (checkpoint/native/set_aside.h).
  // Adds a sentence to `notes` for that and for each newer step that is damaged. Blocks while bytes are copied.
  absl::StatusOr<std::string> Fetch(int64_t step, std::vector<std::string>& notes);

  // kFailedPrecondition when the store has a step beyond `step`, which this run would replace, unless --overwrite is
  // given.
  absl::Status RefuseBeyond(int64_t step);

 private:
  explicit RemoteSteps(const TrainOptions& options) : options_(options) {}

  // The names of committed steps beyond `step`, newest first.
  absl::StatusOr<std::vector<std::string>> Beyond(int64_t step);

  const TrainOptions& options_;
  std::string run_;
  std::unique_ptr<ObjectStore> store_;  // null without --upload
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_REMOTE_STEPS_H_
