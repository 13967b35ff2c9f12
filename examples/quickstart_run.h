// SPDX-License-Identifier: Apache-2.0
//
// QuickstartRun: the project's promise, performed: train sharded, be killed, continue on another number of ranks, and
// open the result anywhere. Each step is printed as the command that a person would type, and run exactly so.
#ifndef FSDP_EXAMPLES_QUICKSTART_RUN_H_
#define FSDP_EXAMPLES_QUICKSTART_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/subprocess.h"

namespace fsdp {

class QuickstartRun {
 public:
  // Everything goes to `output_dir`, which exists, is absolute and empty. kNotFound when train_gpt or ckpt, which are
  // built together with this program, are not there.
  static absl::StatusOr<QuickstartRun> Create(const std::string& output_dir);

  // All steps. The first that fails ends it; what it printed is in the error.
  absl::Status Run();

 private:
  QuickstartRun(std::string output_dir, std::string train_gpt, std::string ckpt);

  absl::Status TrainAndKill();
  absl::Status Continue();
  absl::Status Verify();
  absl::Status Convert();
  absl::Status Summarise();

  // train_gpt on `nproc` ranks; all else is the same in both runs.
  std::vector<std::string> TrainCommand(int nproc) const;

  // Prints the command and runs it to its end; kInternal with its output when it exits with anything but 0.
  absl::Status RunCommand(const std::vector<std::string>& command);

  // Shows progress until `child` has done step `step`, or ended: its exit status.
  absl::StatusOr<int> WatchUntilStep(Subprocess& child, int64_t step);

  std::string CheckpointPath(int64_t step) const;

  std::string output_dir_;
  std::string train_gpt_;
  std::string ckpt_;
  std::string checkpoint_dir_;
  std::string metrics_;
  std::string model_;
};

}  // namespace fsdp

#endif  // FSDP_EXAMPLES_QUICKSTART_RUN_H_
