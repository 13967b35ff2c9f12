// SPDX-License-Identifier: Apache-2.0
//
// launch: runs any program as the ranks of a job on this host, as torchrun does. train_gpt --nproc needs no launch,
// since it starts its ranks by itself.
//
//   launch --nproc=4 -- bazel-bin/train/train_gpt --steps=100
//
// Exit status: that of the first rank that failed, 128 + n when signal n killed it or this program was ended by it, 124
// when the time was up, 1 when the program cannot be started, 2 for a wrong command line. Ranks of train_gpt exit with
// 75 where a restart is the cure.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/collectives/launcher.h"

ABSL_FLAG(int, nproc, 0, "ranks to start on this host");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(), "for the whole job, such as 90s or 2h; inf is no limit");
ABSL_FLAG(absl::Duration, grace, absl::Seconds(30),
          "after SIGTERM or SIGINT, for ranks that catch it; then they are killed; inf is no limit");
ABSL_FLAG(std::string, run_id, "", "name of the job, in FSDP_RUN_ID of its ranks");

namespace fsdp {
namespace {

constexpr char kUsage[] =
    "launch --nproc=N [--timeout=...] [--grace=...] [--run_id=...] -- PROGRAM ARGS...\n"
    "\n"
    "Runs PROGRAM as N ranks, with torchrun's environment variables (RANK, WORLD_SIZE, LOCAL_RANK, ...). Output lines\n"
    "are prefixed with the rank; SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded. After SIGINT or SIGTERM a rank\n"
    "that does not catch the signal has a second to end, one that does has --grace, and a second signal kills all at\n"
    "once. When a rank fails the others are stopped, and the first failure is named with its exit status and last\n"
    "lines.";

int Report(const LaunchResult& result) {
  if (result.exit_code != 0) {
    std::fprintf(stderr, "launch: %s\n", result.description.c_str());
    std::fprintf(stderr, "%s", result.last_lines.empty() ? "" : "launch: its last lines:\n");
  }
  for (const std::string& line : result.last_lines) {
    std::fprintf(stderr, "  %s\n", line.c_str());
  }
  return result.exit_code;
}

int Main(int argc, char** argv) {
  LaunchOptions options;
  if (const std::optional<int> status = ParseFlags(argc, argv, kUsage, &options.command)) {
    return *status;
  }
  options.nproc = absl::GetFlag(FLAGS_nproc);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.stop_grace = absl::GetFlag(FLAGS_grace);
  options.run_id = absl::GetFlag(FLAGS_run_id);
  if (options.nproc < 1 || options.timeout <= absl::ZeroDuration() || options.stop_grace < absl::ZeroDuration() ||
      options.command.empty()) {
    return ReportUsageError("launch",
                            absl::InvalidArgumentError("wanted --nproc of at least 1, a --timeout above 0, a --grace "
                                                       "of at least 0, and a program after --"));
  }
  if (const absl::Status held = CheckNproc(options.nproc); !held.ok()) {
    return ReportUsageError("launch", held);
  }
  const absl::StatusOr<LaunchResult> result = Launch(options);
  if (!result.ok()) {
    std::fprintf(stderr, "launch: %s\n", std::string(result.status().message()).c_str());
    return kExitFailed;
  }
  return Report(*result);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
