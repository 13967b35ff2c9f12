// SPDX-License-Identifier: Apache-2.0
//
// Retention: which steps of a ROOT stay, and the deletion of the others. First a plan, which can be shown, then its
// execution; the saver and `ckpt prune` share both. However few are to stay, the newest step that is good stays, and
// where none is good nothing is deleted. One process at a time does this to a ROOT, beside any number of readers; a
// lock sees to it.
//
//   FSDP_ASSIGN_OR_RETURN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 3, .keep_every = 1000}));
//   FSDP_RETURN_IF_ERROR(ApplyRetention(PosixFileSystem(), root, plan));
#ifndef FSDP_CHECKPOINT_RETENTION_H_
#define FSDP_CHECKPOINT_RETENTION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RetentionPolicy {
  // What a step must be for others to be deleted because of it.
  enum class Good : uint8_t {
    kComplete,  // its manifest is whole and names files that are there, with their sizes; costs nothing
    kVerified,  // every byte verifies; reads the newest step, and older ones until one does
  };

  int keep_last = 1;       // the newest steps; at least 1
  int64_t keep_every = 0;  // steps that this divides stay for good; 0: none does
  Good good = Good::kVerified;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // of the verification; may be empty
};

struct RetentionPlan {
  struct Step {
    std::string name;
    int64_t bytes = 0;  // that deleting it would free: files linked from another step are not counted
    bool keep = false;
    std::string reason;   // of keeping: "keep_last", "keep_every", "the newest that verifies", ...
    std::string problem;  // why it is not good, if that was looked at and it is not
  };

  // A hidden directory that a save or a deletion did not finish.
  struct Leftover {
    std::string name;
    int64_t bytes = 0;
    absl::Duration age;   // since it was last changed
    bool in_use = false;  // a save that is at work holds its lock; never deleted
  };

  std::vector<Step> steps;  // oldest first
  std::vector<Leftover> leftovers;
  bool has_good = false;  // some step is good; otherwise no step is deleted
};

// Looks and changes nothing. kInvalidArgument for a policy that keeps nothing.
absl::StatusOr<RetentionPlan> PlanRetention(const std::string& root, const RetentionPolicy& policy);

// Deletes the steps that are not kept, oldest first, each renamed away first, so that no step-* name ever denotes
// something partial; then leftovers that no save holds. kUnavailable, naming the process, while another one does the
// same, or repairs a step that is to go; the other steps are then deleted.
absl::Status ApplyRetention(FileSystem& files, const std::string& root, const RetentionPlan& plan);

// Both, as a saver wants them after each save: keeps steps as a RetentionPolicy does, takes a complete step for good,
// and leaves leftovers to the next save. What another process is at work on is left to the next save, too.
absl::Status PruneCheckpoints(const std::string& root, int keep_last, int64_t keep_every = 0);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_RETENTION_H_
