// SPDX-License-Identifier: Apache-2.0
//
// launch: runs any program as the ranks of a job on this host, as torchrun does. train_gpt --nproc needs no launch,
// since it starts its ranks by itself.
//
//   launch --nproc=4 -- bazel-bin/train/train_gpt --steps=100
//
// Exit status: that of the first rank that failed, 128 + n when signal n killed it, 124 when the time was up, 1 when
// the program cannot be started, 2 for a wrong command line.
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

namespace fsdp {
namespace {

constexpr char kUsage[] =
    "launch --nproc=N [--timeout=...] -- PROGRAM ARGS...\n"
    "\n"
    "Runs PROGRAM as N ranks, with torchrun's environment variables (RANK, WORLD_SIZE, LOCAL_RANK, ...). Output lines\n"
    "are prefixed with the rank; SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded. When a rank fails the others are\n"
    "stopped, and the first failure is named with its exit status and last lines.";

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
  if (options.nproc < 1 || options.timeout <= absl::ZeroDuration() || options.command.empty()) {
    return ReportUsageError("launch",
                            absl::InvalidArgumentError("wanted --nproc of at least 1, a --timeout above 0, and "
                                                       "a program after --"));
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
