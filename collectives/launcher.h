// SPDX-License-Identifier: Apache-2.0
//
// Launcher: starts the ranks of a job as processes of this host, watches them, and ends them together. A job on several
// hosts has a launcher on each; the launchers share only their options and do not communicate. Used by tools/launch and
// by the --nproc flag of the examples. Ranks never outlive their launcher: each is given a death signal and checks its
// parent (base/child_process.h), so even SIGKILL of the launcher leaves no process behind.
#ifndef FSDP_COLLECTIVES_LAUNCHER_H_
#define FSDP_COLLECTIVES_LAUNCHER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fsdp {

struct LaunchOptions {
  int nproc = 1;                          // on each host
  std::vector<std::string> command = {};  // program and arguments; the program is looked up in PATH

  // A job on several hosts, as with torchrun: host `node_rank` of `nnodes` has the ranks from node_rank * nproc on.
  // master_addr is a name or address of host 0 that all hosts know, and master_port a free port of it. With one host
  // they may be empty and 0: 127.0.0.1 and any free port.
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr = {};
  int master_port = 0;

  absl::Duration timeout = absl::InfiniteDuration();  // for the whole job
  absl::Duration grace = absl::Seconds(5);            // from SIGTERM to SIGKILL when a rank failed or time is up

  // The time between a SIGTERM or SIGINT that this process received and forwarded, and SIGKILL, for a rank that catches
  // or blocks the signal because it has work to finish. Any other rank has ended within a second, or is stuck and gets
  // SIGKILL then.
  absl::Duration stop_grace = absl::Seconds(30);

  // Name of the job in FSDP_RUN_ID (job/job_identity.h); empty: the value in this process's environment.
  std::string run_id = {};

  // Prefix each output line with "[rank 2] ". Off: ranks share this process's stdout and stderr, and only rank 0 of the
  // examples prints.
  bool prefix_output = true;
};

struct LaunchResult {
  int exit_code = 0;     // 0 if all ranks exited with 0; else the code of the first failure, 128 + n for signal n; 124
                         // if time was up; 128 + n if this process received signal n and a rank then ended by it
  int stop_signal = 0;   // the last SIGTERM or SIGINT that this process received; 0: none
  int failed_rank = -1;  // the first that failed; -1 if none did, or time was up
  std::string description;              // "rank 2 of 4 was killed by signal 9 (Killed)"; empty on success
  std::vector<std::string> last_lines;  // of the failed rank's output, if prefix_output
  int output_error = 0;  // if prefix_output: errno of the ranks' stdout that was lost, such as ENOSPC; 0: none was
};

// Runs the command on nproc ranks of this host, with torchrun's variables and a name of the job (job/job_identity.h) in
// their environment, and blocks until all ended. Standard input is /dev/null. SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 that
// this process receives meanwhile are forwarded; SIGCONT follows SIGINT and SIGTERM, so that a stopped rank obeys too.
// A second SIGINT or SIGTERM kills the ranks immediately; one within 200 ms of the first counts as the same. When a
// rank fails the others of this host have a second to notice and print it, then get SIGTERM, and after `grace` SIGKILL;
// the ranks of other hosts notice that their peers are gone. Call it before this process starts threads, which could
// take the signals, and from a thread that outlives the ranks. Errors: kInvalidArgument for bad options and for more
// ranks than the host holds (rank_limit.h); kUnavailable if host 0 cannot listen at master_addr and master_port, naming
// the job and process that hold the port if they are a job's; kNotFound for a program that does not exist,
// kPermissionDenied for one that cannot be executed.
absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_LAUNCHER_H_
