// SPDX-License-Identifier: Apache-2.0
//
// QuickstartRun shows what the project is for: a sharded run is killed, continues on another number of ranks, and its
// checkpoint opens anywhere. Each step is printed as the command that a person would type, and that command is run.
#ifndef FSDP_EXAMPLES_QUICKSTART_RUN_H_
#define FSDP_EXAMPLES_QUICKSTART_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/child_process.h"

namespace fsdp {

// Used by one thread. The files stay in the output directory, so that a person can look at them afterwards.
class QuickstartRun {
 public:
  // All files go to `output_dir`, an absolute path of an empty directory. kNotFound when train_gpt, ckpt or report,
  // which Bazel builds together with this program, are missing.
  static absl::StatusOr<QuickstartRun> Create(const std::string& output_dir);

  // Runs all steps; blocks. The first step that fails ends the run; the error has its output. Call once, since the
  // output directory is then no longer empty.
  absl::Status Run();

 private:
  QuickstartRun(std::string output_dir, std::string train_gpt, std::string ckpt, std::string report);

  // The steps of Run, in order. Each prints what it does and checks the result.
  absl::Status TrainAndKill();
  absl::Status Continue();
  absl::Status Verify();
  absl::Status Convert();
  absl::Status Report();
  absl::Status Summarise();

  // The command line of train_gpt on `nproc` ranks, the only difference between the two runs.
  std::vector<std::string> TrainCommand(int nproc) const;

  // Prints the command and runs it to its end; kInternal with its output when it exits with anything but 0.
  absl::Status RunCommand(const std::vector<std::string>& command);

  // Shows progress until `child` has done step `step` (returns 0) or has ended (returns its exit status).
  absl::StatusOr<int> WatchUntilStep(ChildProcess& child, int64_t step);

  // The directory of the checkpoint after `step` steps.
  std::string CheckpointPath(int64_t step) const;

  // Absolute paths of the outputs and of the three programs. The last five are inside output_dir_: the directory of the
  // checkpoints, the file of metrics, the directory of TensorBoard's events, the safetensors file that the last
  // checkpoint is converted to, and the page about both runs.
  std::string output_dir_;
  std::string train_gpt_;
  std::string ckpt_;
  std::string report_;
  std::string checkpoint_dir_;
  std::string metrics_;
  std::string events_;
  std::string model_;
  std::string page_;
};

}  // namespace fsdp

#endif  // FSDP_EXAMPLES_QUICKSTART_RUN_H_
