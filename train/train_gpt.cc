// SPDX-License-Identifier: Apache-2.0
//
// train_gpt: trains a GPT-2 or Llama, sharded over ranks, with checkpoints. Started by hand, it starts --nproc ranks of
// itself on this host and waits for them; started as part of a job (torchrun, Slurm, mpirun, //tools:launch) it is a
// rank of that job.
//
//   train_gpt --nproc=4 --steps=200 --checkpoint_dir=checkpoints --checkpoint_every=50
//
// Killed at any instant, the same command continues from the newest checkpoint that verifies, on any number of ranks.
//
// Exit status: 0 if all is done, also after a stop by SIGTERM or SIGUSR1 during training; 1 if it failed; 2 for a wrong
// command line; 75 if it should be started again: a peer was lost or did not come, or another job holds the port; 128 +
// n if signal n ended it.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/native/save/leftovers.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/collectives/job/job_identity.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/launcher.h"
#include "fsdp/collectives/self_launch.h"
#include "fsdp/train/rank_device.h"
#include "fsdp/train/stop_signal.h"
#include "fsdp/train/train_options.h"
#include "fsdp/train/trainer.h"

namespace fsdp {
namespace {

constexpr char kProgram[] = "train_gpt";

constexpr char kUsage[] =
    "train_gpt [flags]\n"
    "Trains a GPT-2 or Llama model, sharded over ranks, with checkpoints. Started by hand, it starts --nproc ranks of "
    "itself on this host; started by torchrun, Slurm, mpirun or launch it is a rank of that job. Killed at any "
    "instant, the same command continues from the newest checkpoint that verifies, on any number of ranks.\n"
    "\n"
    "examples:\n"
    "  train_gpt --nproc=4 --steps=200 --checkpoint_dir=checkpoints --checkpoint_every=50\n"
    "  train_gpt --config=gpt2-124m --data='texts/*.txt' --metrics=metrics.jsonl --export=model\n"
    "\n"
    "exit status: 0 all is done, also after a stop by SIGTERM or SIGUSR1 during training; 1 it failed; 2 the command "
    "line is wrong; 75 it should be started again: a rank was lost or did not come, or another job holds the port; "
    "128 + n if signal n ended it.\n"
    "environment: COLUMNS, the width of this text; RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or the "
    "variables of Slurm and of MPI's launchers, name a job to join; with --upload those of the AWS tools.\n";

// Ranks on a host without GPUs.
constexpr int kDefaultNproc = 2;

// Launchers end a job when the first of its ranks fails, and may lose the output of the others from that moment, or
// from just before (MPICH's does so most times). So a rank that fails waits until the others have printed theirs.
constexpr absl::Duration kLastWords = absl::Milliseconds(300);

// checkpoint/ names an option by its C++ name; users of this program know flags.
void Report(absl::string_view message) {
  const std::string text =
      absl::StrReplaceAll(message, {{"LoadOptions::flat_layout", "--flat_layout"},
                                    {"DescribeOptions::flat_layout", "--flat_layout"},
                                    {"LoadCheckpoint of a state dict without optimizer", "ckpt convert --model_only"},
                                    {"DescribeOptions::model_only", "ckpt convert --model_only"},
                                    {"DescribeOptions::skip_links", "ckpt convert --skip_links"},
                                    {"LoadOptions::map", "--map"},
                                    {"DescribeOptions::map", "--map"},
                                    {"ConvertOptions::step", "ckpt convert --step"},
                                    {"RestoreOptions::allowed", "--allow"}});
  std::fflush(stdout);
  PrintError("%s: %s\n", kProgram, text);
}

int Fail(const absl::Status& status) {
  Report(status.message());
  return ExitCodeOf(status);
}

// Completes `job` with the values that only the ranks together know.
absl::StatusOr<std::shared_ptr<ProcessGroup>> JoinJob(Rendezvous& job, const TrainOptions& train) {
  InitOptions options;
  options.join_timeout = train.join_timeout;
  options.backend = train.backend;
  options.make_device = [&job, &train](const Rendezvous& known) {
    job = known;
    return CreateRankDevice(known, train.device);
  };
  return InitProcessGroup(Rendezvous(job), options);
}

absl::Status TrainOrPrint(const TrainOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(options, group));
  absl::Status status = options.print_schedule ? trainer->PrintSchedule() : trainer->Train();
  // Abort before the trainer is destroyed: its streams may wait for peers, and the peers wait for this rank.
  if (!status.ok()) group->Abort(status);
  return status;
}

int RunRank(const TrainOptions& options) {
  // InstalledCudnn reads the variable when the first kernel is chosen.
  if (options.own_attention) setenv("FSDP_CUDNN", "0", /*overwrite=*/1);
  absl::StatusOr<Rendezvous> job = RendezvousFromEnvironment();
  if (!job.ok()) return Fail(job.status());
  const absl::StatusOr<std::shared_ptr<ProcessGroup>> group = JoinJob(*job, options);
  if (!group.ok()) return Fail(group.status());
  const absl::Status status = TrainOrPrint(options, *group);
  if (status.ok()) return kExitDone;
  (*group)->Abort(status);
  // After an abort all ranks have the same error, which names its rank: one rank of each host prints it.
  const int exit_code = job->local_rank == 0 ? Fail(status) : ExitCodeOf(status);
  absl::SleepFor(kLastWords);
  return exit_code;
}

// A rank that was killed counts as lost, whether the user or, for lack of memory, the kernel killed it. The other ranks
// have ended because of it.
int ExitCodeOf(const LaunchResult& result) {
  const bool is_lost = result.stop_signal == 0 && result.exit_code == 128 + SIGKILL;
  return is_lost ? kExitRestart : result.exit_code;
}

// Removes leftovers of ranks that a signal ended during a save: hidden directories in which no process saves any more.
// The next save removes those that cannot be removed now.
void WithdrawSave(const std::string& checkpoint_dir) {
  const absl::StatusOr<std::vector<Leftover>> leftovers = FindLeftovers(PosixFileSystem(), checkpoint_dir);
  if (!leftovers.ok()) return;
  for (const Leftover& leftover : *leftovers) {
    (void)RemoveLeftover(PosixFileSystem(), checkpoint_dir, leftover.name);
  }
}

// Starts this program again as the ranks of a job.
int LaunchRanks(const TrainOptions& train, int argc, char** argv) {
  const absl::StatusOr<int> gpus = CountGpus(train.device.device);
  if (!gpus.ok()) return Fail(gpus.status());

  // OpenMP threads that wait by spinning make kernels ten times slower when other work needs the cores too. OpenMP
  // reads the variable when a process starts, so it is set for the ranks here.
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  LaunchOptions options;
  options.nproc = train.nproc.value_or(*gpus > 0 ? *gpus : kDefaultNproc);
  if (const absl::Status held = CheckNproc(options.nproc); !held.ok()) return ReportUsageError(kProgram, held);
  options.command = {SelfPath()};
  options.command.insert(options.command.end(), argv + 1, argv + argc);
  // Ranks print whole lines of their own, and only rank 0 prints progress.
  options.prefix_output = false;
  options.stop_grace = absl::InfiniteDuration();  // a rank knows --grace, and whether it saves
  const absl::StatusOr<LaunchResult> result = Launch(options);
  if (!result.ok()) return Fail(result.status());
  if (result->stop_signal != 0 && !train.checkpoint_dir.empty()) WithdrawSave(train.checkpoint_dir);
  if (result->exit_code != 0) Report(result->description);
  return ExitCodeOf(*result);
}

int Main(int argc, char** argv) {
  // A file that outgrows its limit (ulimit -f) is then an error like a full disk, and does not end the process. Ranks
  // inherit this.
  std::signal(SIGXFSZ, SIG_IGN);
  ObeyStopSignals();
  if (const std::optional<int> status = ParseFlags(argc, argv, kUsage)) return *status;
  const absl::StatusOr<TrainOptions> options = TrainOptionsFromFlags();
  if (!options.ok()) return ReportUsageError(kProgram, options.status());
  // Before the rank reads its job from the environment. Ranks of --nproc have the flag on their command lines.
  if (!options->run_id.empty()) setenv(kRunIdVariable, options->run_id.c_str(), /*overwrite=*/1);
  return InsideJob() ? RunRank(*options) : LaunchRanks(*options, argc, argv);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::FinishOutput(fsdp::kProgram, fsdp::Main(argc, argv)); }
