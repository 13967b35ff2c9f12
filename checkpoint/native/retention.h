// SPDX-License-Identifier: Apache-2.0
//
// Retention: which steps of a ROOT stay, and the deletion of the others. First a plan, which can be shown, then its
// execution; the saver and `ckpt prune` share both. With any policy the newest good step stays, and nothing is deleted
// when no step is good. Only directories proven to be of this project count as steps and are deleted
// (checkpoint/native/save/checkpoint_proof.h); the plan names the others. A lock on ROOT admits one deleting process at
// a time; any number of readers may run concurrently.
//
//   FSDP_ASSIGN_OR_RETURN(const RetentionPlan plan, PlanRetention(root, {.keep_last = 3, .keep_every = 1000}));
//   FSDP_RETURN_IF_ERROR(ApplyRetention(PosixFileSystem(), root, plan));
#ifndef FSDP_CHECKPOINT_NATIVE_RETENTION_H_
#define FSDP_CHECKPOINT_NATIVE_RETENTION_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RetentionPolicy {
  // The condition for a step to count as good, so that others may be deleted.
  enum class Good : uint8_t {
    kComplete,  // its manifest is whole, and the files that it names exist with their sizes; costs nothing
    kVerified,  // every byte verifies; reads the newest step, and older ones until one does
  };

  int keep_last = 1;                // the newest steps; at least 1
  int64_t keep_every = 0;           // steps that are a multiple of it are never deleted; 0: no such steps
  std::set<std::string> keep = {};  // names of further steps that are never deleted, such as the best
  Good good = Good::kVerified;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // of a verification; may be empty
};

struct RetentionPlan {
  struct Step {
    std::string name;
    int64_t step = 0;
    int64_t bytes = 0;  // freed by deleting only this step (FreedBytes): without files that another step links
    bool keep = false;
    std::string reason = {};   // why it stays: "keep_last", "keep_every", "the newest that verifies", ...
    std::string problem = {};  // why it is not good; empty when it is, or was not checked
  };

  // A hidden directory that a save or a deletion did not finish.
  struct Leftover {
    std::string name;
    int64_t bytes = 0;
    absl::Duration age;   // since it was last changed; for people (file_age.h)
    bool in_use = false;  // a running save holds its lock; never deleted
  };

  // An entry whose name resembles a step or a leftover but that is not proven to be one; or a step that holds a file
  // that no save wrote. Neither is deleted.
  struct Unproven {
    std::string name;
    std::string reason;  // "it holds notes.txt and no manifest.json of this project"
  };

  std::vector<Step> steps;  // oldest first
  std::vector<Leftover> leftovers;
  std::vector<Unproven> unproven;  // by name
  bool has_good = false;           // some step is good; if not, no step is deleted
  int64_t freed_bytes = 0;         // by all deletions together (FreedBytes)
};

// Changes nothing. Blocks while it verifies, if the policy asks for that. kInvalidArgument for a policy that keeps no
// step.
absl::StatusOr<RetentionPlan> PlanRetention(const std::string& root, const RetentionPolicy& policy);

// Deletes the steps that are not kept, oldest first; each is renamed before its files are removed, so that no step-*
// name ever denotes a partial step. Then deletes leftovers that no save holds. kUnavailable, naming the process, while
// another process deletes in `root`, or repairs a step that must go; in the second case the other steps are deleted.
absl::Status ApplyRetention(FileSystem& files, const std::string& root, const RetentionPlan& plan);

// PlanRetention and ApplyRetention for a saver, after each save: with the policy kComplete, without leftovers, which
// the next save removes. Steps that another process is changing are left to the next call, without an error. `left`, if
// not null, gets a sentence for each RetentionPlan::Unproven, and for each step that is not good.
absl::Status PruneCheckpoints(const std::string& root, int keep_last, int64_t keep_every = 0,
                              std::vector<std::string>* left = nullptr);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_RETENTION_H_
