// SPDX-License-Identifier: Apache-2.0
//
// launch: runs any program as the ranks of a job on this host, or on this and other hosts, as torchrun does. train_gpt
// --nproc needs no launch, since it starts its ranks by itself.
//
//   launch --nproc=4 -- bazel-bin/train/train_gpt --steps=100
//
// On two hosts, with host-a as the first; --node_rank=1 on the other:
//
//   launch --nnodes=2 --node_rank=0 --master_addr=host-a --master_port=29500 --nproc=4 -- train_gpt --steps=100
//
// Exit status: the status of the first rank that failed, 128 + n if signal n killed it or ended this program, 124 if
// the time was up, 1 if the program cannot be started, 2 for a wrong command line, 75 if the port of --master_port is
// not to be had, now: another job or program holds it, or the name of host 0 has no address. Ranks of train_gpt exit
// with 75 too, to ask for a restart.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/terminal.h"
#include "fsdp/collectives/launcher.h"
#include "fsdp/collectives/self_launch.h"

ABSL_FLAG(int, nproc, 0, "ranks to start on this host");
ABSL_FLAG(int, nnodes, 1, "hosts of the job; each runs launch, with the same flags except --node_rank");
ABSL_FLAG(int, node_rank, 0, "number of this host, from 0 to nnodes - 1; rank 0 is on host 0");
ABSL_FLAG(std::string, master_addr, "", "name or address of host 0; with one host 127.0.0.1");
ABSL_FLAG(int, master_port, 0, "port of host 0 at which the ranks meet; with one host any free one");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(), "for the whole job, such as 90s or 2h; inf is no limit");
ABSL_FLAG(absl::Duration, grace, absl::Seconds(30),
          "after SIGTERM or SIGINT, for ranks that catch it; then they are killed; inf is no limit");
ABSL_FLAG(std::string, run_id, "", "name of the job, in FSDP_RUN_ID of its ranks");

namespace fsdp {
namespace {

// %1$s: the name by which the program was called, launch or, installed, fsdp-launch.
constexpr char kUsage[] =
    "%1$s --nproc=N [--timeout=...] [--grace=...] [--run_id=...] -- PROGRAM ARGS...\n"
    "%1$s --nnodes=H --node_rank=R --master_addr=HOST --master_port=P --nproc=N [...] -- PROGRAM ARGS...\n"
    "\n"
    "Runs PROGRAM as N ranks, with torchrun's environment variables (RANK, WORLD_SIZE, LOCAL_RANK, ...). Output lines "
    "are prefixed with the rank; SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded. After SIGINT or SIGTERM a rank "
    "that does not catch the signal has a second to end, one that does has --grace, and a second signal kills all "
    "immediately. When a rank fails the others are stopped, and the first failure is named with its exit status and "
    "last lines.\n"
    "\n"
    "A job on H hosts is started on each of them by hand or by a script, in any order. It has H * N ranks; R * N is "
    "the first one here. When a rank fails, %1$s stops the ranks of its own host; the ranks of the others notice it. "
    "If hosts run the program in different directories or with different flags, give all the same --run_id.\n"
    "\n"
    "examples:\n"
    "  %1$s --nproc=4 -- train_gpt --steps=100\n"
    "  %1$s --nnodes=2 --node_rank=0 --master_addr=host-a --master_port=29500 --nproc=4 -- train_gpt --steps=100\n"
    "\n"
    "exit status: 0 done; of the first rank that failed, or 128 + n if signal n ended it or this program; 124 the time "
    "was up; 1 the program cannot be started; 2 the command line is wrong; 75 the port cannot be had now, or a rank "
    "asks "
    "to be started again.\n"
    "environment: COLUMNS, the width of this text; the ranks get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
    "MASTER_ADDR, MASTER_PORT and FSDP_RUN_ID.\n";

// "launch --nproc=2 train_gpt --steps=2": without "--" the flags of PROGRAM are taken for flags of launch. If they are
// unknown and there is no "--", returns an error that asks for it; else OK.
absl::Status CheckSeparator(const std::string& program, int argc, char** argv) {
  if (ReadCommandLine(argc, argv).ok()) return absl::OkStatus();
  for (int n = 1; n <= argc; ++n) {
    if (absl::string_view(argv[n - 1]) == "--") return absl::OkStatus();
    // The first n arguments, of which the last may be a flag that lacks its value.
    const absl::StatusOr<CommandLine> line = ReadCommandLine(n, argv);
    if (!line.ok() || line->operands.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("-- is missing before \"", line->operands[0], "\": ", program, " [flags] -- PROGRAM ARGS..."));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const LaunchOptions& options) {
  if (options.command.empty()) return absl::InvalidArgumentError("a program after -- is missing");
  if (options.nproc == 0)
    return absl::InvalidArgumentError("--nproc is missing, or 0: expected a number of ranks, 1 or more");
  if (options.nproc < 0)
    return absl::InvalidArgumentError(absl::StrCat("--nproc=", options.nproc, ", expected 1 or more"));
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout=", absl::FormatDuration(options.timeout), ", expected more than 0"));
  }
  if (options.stop_grace >= absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--grace=", absl::FormatDuration(options.stop_grace), ", expected 0 or more"));
}

int Report(const std::string& program, const LaunchResult& result) {
  if (result.exit_code != 0) {
    PrintError("%s: %s\n", program, result.description);
    if (!result.last_lines.empty()) PrintError("%s: its last lines:\n", program);
  }
  for (const std::string& line : result.last_lines) {
    PrintError("  %s\n", line);
  }
  if (result.output_error == 0) return result.exit_code;
  PrintError("%s: stdout: %s\n", program, std::strerror(result.output_error));
  return result.exit_code == 0 ? kExitFailed : result.exit_code;
}

int Main(int argc, char** argv) {
  const std::string program = ProgramName(argc, argv);
  if (const absl::Status missing = CheckSeparator(program, argc, argv); !missing.ok()) {
    return ReportUsageError(program, missing);
  }
  LaunchOptions options;
  if (const std::optional<int> status = ParseFlags(argc, argv, absl::StrFormat(kUsage, program), &options.command)) {
    return *status;
  }
  options.nproc = absl::GetFlag(FLAGS_nproc);
  options.nnodes = absl::GetFlag(FLAGS_nnodes);
  options.node_rank = absl::GetFlag(FLAGS_node_rank);
  options.master_addr = absl::GetFlag(FLAGS_master_addr);
  options.master_port = absl::GetFlag(FLAGS_master_port);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.stop_grace = absl::GetFlag(FLAGS_grace);
  options.run_id = absl::GetFlag(FLAGS_run_id);
  absl::Status held = CheckOptions(options);
  if (held.ok()) held = CheckNproc(options.nproc);
  if (!held.ok()) {
    return ReportUsageError(program, held);
  }
  const absl::StatusOr<LaunchResult> result = Launch(options);
  // Launch checks the hosts' flags: an error of the command line, not of a rank.
  if (absl::IsInvalidArgument(result.status())) {
    return ReportUsageError(program, result.status());
  }
  if (!result.ok()) {
    PrintError("%s: %s\n", program, result.status().message());
    return ExitCodeOf(result.status());
  }
  return Report(program, *result);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::FinishOutput(fsdp::ProgramName(argc, argv), fsdp::Main(argc, argv)); }
