// SPDX-License-Identifier: Apache-2.0
//
// The command line of train_gpt: what it refuses, with its exit status and message, and how it finds files.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "fsdp/train/metrics.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Refusal {
  Flags flags;
  std::vector<std::string> words;
};

void ExpectRefused(const Flags& flags, int exit_status, const std::vector<std::string>& words) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(flags));
  EXPECT_EQ(run.exit_status, exit_status) << testing::PrintToString(flags) << "\n" << run.output;
  for (const std::string& word : words) EXPECT_THAT(run.output, HasSubstr(word)) << testing::PrintToString(flags);
}

TEST(TrainGptCliTest, AWrongCommandLineExitsWith2AndNamesTheFlag) {
  const std::vector<Refusal> refusals = {
      {{"--stepz=3"}, {"stepz"}},
      {{"--steps=3", "--steps=4"}, {"steps", "2 times"}},
      {{"--steps=many"}, {"steps", "many"}},
      {{"--steps"}, {"steps"}},
      {{"operand"}, {"operand"}},
      {{"--steps=0"}, {"--steps=0", "at least 1"}},
      {{"--nproc=0"}, {"--nproc=0", "at least 1"}},
      {{"--nproc=100000"}, {"nproc is 100000, wanted at most "}},
      {{"--run_id=two words"}, {"--run_id=two words", "without spaces"}},
      {{"--grace=0.5s"}, {"--grace=500ms", "at least 1s"}},
      {{"--join_timeout=0"}, {"--join_timeout=0", "at least 1s"}},
      {{"--batch_size=-1"}, {"--batch_size=-1"}},
      {{"--lr=nan"}, {"--lr=nan"}},
      {{"--lr=-1"}, {"--lr=-1"}},
      {{"--beta2=1"}, {"--beta2=1"}},
      {{"--lr_schedule=step"}, {"--lr_schedule=step", "auto or constant or cosine or linear or wsd"}},
      {{"--lr_schedule=constant", "--min_lr=0"}, {"--min_lr", "--lr_schedule=cosine, linear or wsd"}},
      {{"--lr_decay_steps=5"}, {"--lr_decay_steps", "--lr_schedule=cosine, linear or wsd"}},
      {{"--lr_decay_steps=-1"}, {"--lr_decay_steps=-1", "at least 0"}},
      {{"--lr_schedule=wsd", "--steps=9", "--warmup_steps=5", "--lr_decay_steps=5"},
       {"--lr_schedule=wsd", "--warmup_steps + --lr_decay_steps, 10, as --steps, not 9"}},
      {{"--optimizer=adagrad"}, {"--optimizer=adagrad", "adamw or adam or sgd or lion or adafactor or muon"}},
      {{"--optimizer=sgd", "--amsgrad"}, {"--amsgrad", "--optimizer=adamw, adam or muon, not sgd"}},
      {{"--optimizer=sgd", "--beta1=0.5"}, {"--beta1", "--optimizer=adamw, adam, lion or muon, not sgd"}},
      {{"--optimizer=adafactor", "--eps=1e-6"}, {"--eps", "--optimizer=adamw, adam or muon, not adafactor"}},
      {{"--optimizer=muon", "--param_dtype=float16"}, {"--optimizer=muon", "--grad_scaler"}},
      {{"--momentum=0.9"}, {"--momentum", "not adamw"}},
      {{"--optimizer=sgd", "--momentum=nan"}, {"--momentum=nan"}},
      {{"--optimizer=adam", "--cuda_graph", "--device=cuda"}, {"--cuda_graph", "--optimizer=adamw"}},
      {{"--wrap=size:0"}, {"--wrap=size:0", "size:N"}},
      {{"--wrap=layer"}, {"--wrap=layer", "block"}},
      {{"--backward_prefetch=both"}, {"--backward_prefetch=both", "pre or post or none"}},
      {{"--param_dtype=int8"}, {"--param_dtype=int8", "float32 or bfloat16 or float16"}},
      {{"--dtype=float64"}, {"--dtype=float64", "float32 or bfloat16 or float16"}},
      {{"--bf16_stochastic_round"}, {"--bf16_stochastic_round", "--dtype=bfloat16"}},
      {{"--dtype=float16", "--bf16_stochastic_round"}, {"--bf16_stochastic_round", "--dtype=bfloat16"}},
      {{"--dtype=bfloat16", "--bf16_stochastic_round", "--seed=9007199254740993"}, {"--seed=", "at most 2^53"}},
      {{"--dtype=bfloat16", "--keep_low_precision_grads"}, {"--keep_low_precision_grads", "--dtype=float32"}},
      {{"--optimizer=muon", "--dtype=float16"}, {"--optimizer=muon", "--grad_scaler"}},
      {{"--reduce_dtype=float64"}, {"--reduce_dtype=float64", "float32 or bfloat16 or float16"}},
      {{"--attention=flash"}, {"--attention=flash", "auto or eager or online or own"}},
      {{"--loss_chunks=-1"}, {"--loss_chunks=-1", "at least 0"}},
      {{"--loss_chunks=8", "--api=fsdp2", "--output_dtype=float32"},
       {"--loss_chunks and --output_dtype: expected one of them"}},
      {{"--grad_scaler=yes"}, {"--grad_scaler=yes", "on or off or auto"}},
      {{"--init_scale=8"},
       {"--init_scale and --growth_interval", "--dtype or --param_dtype=float16 or --grad_scaler=on"}},
      {{"--growth_interval=8", "--param_dtype=float16", "--grad_scaler=off"},
       {"--growth_interval", "--grad_scaler=on"}},
      {{"--param_dtype=float16", "--init_scale=0"}, {"--grad_scaler", "init_scale is 0"}},
      {{"--param_dtype=float16", "--growth_interval=0"}, {"--grad_scaler", "growth_interval is 0"}},
      {{"--resume="}, {"--resume=", "auto, none"}},
      {{"--data=*.txt", "--tokens=a.u16"}, {"--data", "--tokens"}},
      {{"--api=fsdp3"}, {"--api=fsdp3", "fsdp1 or fsdp2"}},
      {{"--api=fsdp2", "--sharding_strategy=no_shard"}, {"--sharding_strategy=no_shard", "--api=fsdp1"}},
      {{"--api=fsdp2", "--use_orig_params"}, {"--use_orig_params", "--api=fsdp1"}},
      {{"--api=fsdp2", "--state_dict_type=local"}, {"--state_dict_type=local", "--api=fsdp1"}},
      {{"--keep_every=10"}, {"--keep_every", "--keep_last"}},
      {{"--symm_mem_for_comm", "--device=cpu"}, {"--symm_mem_for_comm: expected GPUs, not --device=cpu"}},
      {{"--copy_engine_all_gather"}, {"--copy_engine_all_gather: expected together with --symm_mem_for_comm"}},
      {{"--cuda_graph", "--device=cpu"}, {"--cuda_graph: expected a GPU, not --device=cpu"}},
      {{"--cuda_graph", "--cpu_offload"}, {"--cuda_graph: expected no --cpu_offload"}},
      {{"--cuda_graph", "--trace=t.json"}, {"--cuda_graph: expected no --trace"}},
      {{"--api=fsdp2", "--buffer_dtype=bfloat16"}, {"--buffer_dtype", "--api=fsdp1"}},
      {{"--output_dtype=bfloat16"}, {"--output_dtype", "--api=fsdp2"}},
      {{"--api=fsdp2", "--output_dtype=int8"}, {"--output_dtype=int8", "float32 or bfloat16"}},
      {{"--pin_memory"}, {"--pin_memory", "--cpu_offload"}},
      {{"--api=fsdp2", "--backward_prefetch=none"}, {"--backward_prefetch", "--api=fsdp1"}},
      {{"--upload=models/run", "--checkpoint_dir=x"}, {"--upload", "expected s3://BUCKET/PREFIX"}},
      {{"--upload=s3://models/run"}, {"--upload", "expected together with --checkpoint_dir"}},
      {{"--incremental", "--state_dict_type=full"}, {"--incremental", "--state_dict_type=sharded or local"}},
      {{"--rank0_only"}, {"--rank0_only", "--state_dict_type=full"}},
      {{"--shard_group_size=2"}, {"--shard_group_size", "hybrid_shard_zero2"}},
      {{"--buffer_dtype=int8"}, {"--buffer_dtype=int8", "float32 or bfloat16"}},
      {{"--checkpoint_every=5"}, {"--checkpoint_every", "--checkpoint_dir"}},
      {{"--model=mamba"}, {"--model=mamba", "gpt2 or llama"}},
      {{"--freeze=("}, {"--freeze", "\"(\" is not a regular expression"}},
  };
  for (const Refusal& refusal : refusals) ExpectRefused(refusal.flags, 2, refusal.words);
}

TEST(TrainGptCliTest, AnInputThatCannotBeUsedExitsWith1AndSaysWhy) {
  setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);  // for --device=cuda
  const std::string directory = NewDirectory();
  std::ofstream(directory + "/bad.u16", std::ios::binary)
      << std::string(40, '\0') << "\xff\x01" << std::string(40, '\0');
  std::ofstream(directory + "/odd.u16", std::ios::binary) << "abc";
  std::ofstream(directory + "/few.txt") << "0123456789abcdef";
  std::ofstream(directory + "/layout.json") << "{\"parameters\": 3}";
  const std::string config = "--config=" + Golden("gpt2_tiny/config.json");
  const std::vector<Refusal> refusals = {
      {{"--config=gpt3-tiny"}, {"gpt3-tiny", "gpt2-tiny"}},
      {{"--model=llama", "--config=gpt2-tiny"}, {"gpt2-tiny", "llama-tiny"}},
      {{"--model=llama", config}, {"model_type", "gpt2", "llama"}},
      {{config, "--seq_len=65"}, {"--seq_len=65", "n_positions", "64"}},
      {{config, "--seq_len=16", "--data=" + directory + "/few.txt"}, {"few.txt", "16 tokens", "seq_len=16"}},
      {{config, "--seq_len=16", "--tokens=" + directory + "/bad.u16"}, {"bad.u16", "token 511", "position 20", "257"}},
      {{config, "--tokens=" + directory + "/odd.u16"}, {"odd.u16", "3 bytes"}},
      {{config, "--tokens=" + directory + "/none.u16"}, {"none.u16"}},
      {{config, "--data=" + directory + "/*.none"}, {"*.none", "no file matches"}},
      {{config, "--init_from=" + directory + "/none"}, {directory + "/none"}},
      {{config, "--init_from=" + Golden("gpt2_uneven")}, {"transformer."}},
      {{config, "--init_from=" + Golden("gpt2_tiny"), "--flat_layout=" + directory + "/layout.json"},
       {"flat layout: expected a JSON object", directory + "/layout.json"}},
      {{config, "--resume=" + directory}, {directory}},
      {{config, "--seq_len=16", "--freeze=adapter"}, {"--freeze=adapter", "matches none", "transformer.wte.weight"}},
      {{config, "--seq_len=16", "--freeze=."}, {"--freeze=.", "leaves none to train"}},
      {{config, "--seq_len=16", "--freeze=wte"}, {"unit root", "transformer.wte.weight", "use_orig_params"}},
      {{config, "--metrics=/proc/no/metrics.jsonl"}, {"--metrics=/proc/no/metrics.jsonl"}},
      {{config, "--trace=/proc/no/trace.json"}, {"--trace=/proc/no/trace.json"}},
      {{config, "--parity=254", "--seq_len=16", "--checkpoint_dir=" + directory},
       {"--parity=254: expected at most 253 with the files of 2 ranks"}},
      {{config, "--device=cuda"}, {"--device=cuda: ", "train with --device=cpu"}},
      {{config, "--seq_len=16", "--cuda_graph"}, {"--cuda_graph: the model is on cpu", "only on a CUDA device"}},
      {{config, "--seq_len=16", "--symm_mem_for_comm"}, {"symm_mem_for_comm: backend ", "expected backend nccl"}},
      {{config, "--seq_len=16", "--symm_mem_for_comm", "--copy_engine_all_gather", "--api=fsdp2"},
       {"set_symm_mem_for_comm: backend ", "expected backend nccl"}},
      {{config, "--checkpoint_dir=/proc/saved"}, {"--checkpoint_dir=/proc/saved", "cannot be made"}},
  };
  for (const Refusal& refusal : refusals) ExpectRefused(refusal.flags + Flags{"--steps=1"}, 1, refusal.words);
}

TEST(TrainGptCliTest, ACheckpointDirThatCannotBeWrittenIsRefusedBeforeTheFirstStep) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const std::string directory = NewDirectory();
  std::filesystem::permissions(directory, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  ExpectRefused(SmallRun() + Flags{"--steps=1", "--checkpoint_dir=" + directory}, 1,
                {"--checkpoint_dir=" + directory + ": cannot be written: Permission denied"});
}

TEST(TrainGptCliTest, HelpListsTheFlagsAndExitsWith0) {
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train({"--help"}));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.output, AllOf(HasSubstr("--sharding_strategy"), HasSubstr("--keep_last"), HasSubstr("--pin_memory")));
}

TEST(TrainGptCliTest, TrainsOnThisRepositorysSourcesByDefaultFromAnyDirectory) {
  const std::string metrics = NewDirectory() + "/metrics.jsonl";
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  ChildOptions options;
  options.working_directory = "/";
  ASSERT_OK_AND_ASSIGN(const ProgramResult run,
                       RunProgram({program, "--steps=2", "--metrics=" + metrics}, absl::Minutes(2), options));
  EXPECT_EQ(run.exit_status, 0) << run.output;
  ASSERT_OK_AND_ASSIGN(const auto steps, MetricsByStep(metrics));
  EXPECT_EQ(steps.size(), 2u);
  EXPECT_GT(steps.at(0).peak_bytes, 0);
  EXPECT_GT(steps.at(1).tokens_per_second, 0);
}

TEST(TrainGptCliTest, RelativePathsAreThoseOfTheDirectoryInWhichBazelRunWasTyped) {
  const std::string directory = NewDirectory();
  std::filesystem::copy_file(Golden("tokens.u16"), directory + "/here.u16");
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  ChildOptions options;
  options.working_directory = "/";
  options.environment = {{"BUILD_WORKING_DIRECTORY", directory}};
  ASSERT_OK_AND_ASSIGN(const ProgramResult run,
                       RunProgram({program, "--steps=1", "--seq_len=16", "--tokens=here.u16", "--metrics=new/m.jsonl",
                                   "--trace=other/new/t.json", "--checkpoint_dir=saved", "--export=exported"},
                                  absl::Minutes(2), options));
  EXPECT_EQ(run.exit_status, 0) << run.output;
  for (const char* made : {"new/m.jsonl", "other/new/t.json", "saved/step-00000001/manifest.json",
                           "exported/config.json", "exported/model.safetensors"}) {
    EXPECT_TRUE(std::filesystem::exists(directory + "/" + made)) << made;
  }
}

// A copy of the program does not have the sources next to it.
TEST(TrainGptCliTest, TheScheduleNeedsNoData) {
  const std::string directory = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  std::filesystem::copy_file(program, directory + "/train_gpt");
  ChildOptions options;
  options.working_directory = directory;
  options.unset = {"RUNFILES_DIR", "TEST_SRCDIR"};
  const std::string copy = directory + "/train_gpt";
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, RunProgram({copy, "--print_schedule"}, absl::Minutes(1), options));
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("all_gather transformer.h.1"), HasSubstr("reduce_scatter root")));
  ASSERT_OK_AND_ASSIGN(const ProgramResult train, RunProgram({copy, "--steps=1"}, absl::Minutes(1), options));
  EXPECT_EQ(train.exit_status, 1);
  EXPECT_THAT(train.output, HasSubstr("neither --data nor --tokens is given"));
}

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

TEST(TrainGptCliTest, JoinsTheJobThatItsEnvironmentNames) {
  const std::string directory = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  const std::string port = absl::StrCat(FreePort());
  const Flags own = SmallRun() + Flags{"--steps=3", "--metrics=" + directory + "/joined.jsonl"};
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (const std::string rank : {"0", "1"}) {
    ChildOptions options;
    options.environment = {{"RANK", rank},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", rank},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port}};
    ASSERT_OK_AND_ASSIGN(auto child, ChildProcess::Start(Flags{program} + own, options));
    ranks.push_back(std::move(child));
  }
  for (const auto& rank : ranks) EXPECT_THAT(rank->Wait(absl::Minutes(1)), IsOkAndHolds(0)) << rank->output();
  ASSERT_OK_AND_ASSIGN(const ProgramResult run,
                       Train(SmallRun() + Flags{"--steps=3", "--metrics=" + directory + "/own.jsonl"}));
  ASSERT_EQ(run.exit_status, 0);
  ASSERT_OK_AND_ASSIGN(const auto joined, MetricsByStep(directory + "/joined.jsonl"));
  ASSERT_OK_AND_ASSIGN(const auto launched, MetricsByStep(directory + "/own.jsonl"));
  ASSERT_EQ(joined.size(), 3u);
  for (const auto& [step, line] : launched) EXPECT_EQ(joined.at(step).loss, line.loss) << "step " << step;
}

// If a host is killed between the start of its ranks and their meeting, only its peers notice.
TEST(TrainGptCliTest, ARankWhosePeersDoNotComeAsksForARestartAfterItsJoinTimeout) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  ChildOptions options;
  options.environment = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", absl::StrCat(FreePort())}};
  ASSERT_OK_AND_ASSIGN(auto rank,
                       ChildProcess::Start(Flags{program} + SmallRun() + Flags{"--join_timeout=1s"}, options));
  EXPECT_THAT(rank->Wait(absl::Minutes(1)), IsOkAndHolds(kExitRestart)) << rank->output();
  EXPECT_THAT(rank->output(), HasSubstr("rank 0 of 2: rendezvous waited 1s; missing ranks: 1"));
}

}  // namespace
}  // namespace fsdp
