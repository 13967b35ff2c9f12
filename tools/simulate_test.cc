// SPDX-License-Identifier: Apache-2.0
//
// The program itself: its exit statuses, its two output streams, and the keys of its JSON.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ProgramResult Simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FindRunfile("tools/simulate").value());
  return RunProgram(arguments, absl::InfiniteDuration(), {.errors = ChildOutput::Text()}).value();
}

void ExpectUsageError(const std::vector<std::string>& arguments, const std::string& message) {
  const ProgramResult result = Simulate(arguments);
  EXPECT_EQ(result.exit_status, 2) << message;
  EXPECT_THAT(result.errors, HasSubstr(message));
  EXPECT_EQ(result.output, "");
}

TEST(SimulateTest, PrintsTheFiveNumbersAsJson) {
  const ProgramResult result = Simulate({"--config=llama-3.1-8b", "--ranks=128", "--hosts=16", "--link=3200gbit",
                                         "--device=h100-500w", "--batch_size=2", "--seq_len=8192",
                                         "--activation_checkpointing=selective_op", "--kernels=fused", "--json"});
  ASSERT_EQ(result.exit_status, 0) << result.errors;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  // torchtitan measured 6,514 tokens a second on each GPU (docs/simulate.md).
  EXPECT_NEAR(json["tokens_per_second"].get<double>() / 128, 6514, 651);
  EXPECT_GE(json["exposed_communication"].get<double>(), 0);
  EXPECT_LT(json["exposed_communication"].get<double>(), 0.05);
  EXPECT_GT(json["peak_bytes"].get<int64_t>(), 8'030'261'248 * 16 / 128);
  EXPECT_GT(json["save_seconds"].get<double>(), 0);
  EXPECT_GT(json["load_seconds"].get<double>(), 0);
}

TEST(SimulateTest, PrintsTextForPeople) {
  const ProgramResult result = Simulate({"--config=gpt2-124m", "--ranks=2", "--hosts=2", "--link=1gbit"});
  ASSERT_EQ(result.exit_status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("2 ranks on 2 hosts, h100, 124439808 parameters: an estimate"));
  EXPECT_THAT(result.output, HasSubstr("exposed communication"));
}

TEST(SimulateTest, AModelThatDoesNotFitIsSaidFirstWithWhatWouldFit) {
  const ProgramResult result = Simulate({"--config=llama-3.1-8b", "--batch_size=4", "--ranks=8"});
  ASSERT_EQ(result.exit_status, 0) << result.errors;
  EXPECT_THAT(result.output, testing::StartsWith("does not fit: 8 ranks on 1 host, each needs "));
  EXPECT_THAT(result.output,
              AllOf(HasSubstr(" GiB and the h100 has 74.5 GiB\n"), HasSubstr("  fits with --activation_checkpointing="),
                    HasSubstr("\n8 ranks on 1 host, h100, ")));
  const nlohmann::json json =
      nlohmann::json::parse(Simulate({"--config=llama-3.1-8b", "--batch_size=4", "--ranks=8", "--json"}).output);
  EXPECT_EQ(json["fits"], false);
  // The flags that are named make it fit, with the numbers that are printed.
  ASSERT_FALSE(json["would_fit"].empty());
  for (const nlohmann::json& fitting : json["would_fit"]) {
    std::vector<std::string> arguments = {"--config=llama-3.1-8b", "--json"};
    std::vector<std::string> flags = absl::StrSplit(fitting["flags"].get<std::string>(), ' ');
    if (flags[0].find("--ranks=") != 0) flags.emplace_back("--ranks=8");
    if (flags[0].find("--batch_size=") != 0) flags.emplace_back("--batch_size=4");
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const nlohmann::json tried = nlohmann::json::parse(Simulate(arguments).output);
    EXPECT_EQ(tried["fits"], true) << fitting;
    EXPECT_EQ(tried["peak_bytes"], fitting["peak_bytes"]) << fitting;
    EXPECT_EQ(tried["tokens_per_second"], fitting["tokens_per_second"]) << fitting;
  }
}

TEST(SimulateTest, SeveralNumbersOfRanksAreATable) {
  const std::vector<std::string> base = {"--config=gpt2-124m", "--hosts=1", "--link=100gbit"};
  const auto with = [&base](std::vector<std::string> flags) {
    flags.insert(flags.begin(), base.begin(), base.end());
    return Simulate(flags);
  };
  const ProgramResult table = with({"--ranks=8,16,32,64"});
  ASSERT_EQ(table.exit_status, 0) << table.errors;
  EXPECT_THAT(table.output, AllOf(HasSubstr("  ranks  hosts     tokens/s"), HasSubstr("\n      8      1 "),
                                  HasSubstr("\n     64      8 "), HasSubstr(" yes ")));
  const nlohmann::json jobs = nlohmann::json::parse(with({"--ranks=8,64", "--json"}).output)["jobs"];
  ASSERT_EQ(jobs.size(), 2u);
  // Each is the job by itself, on hosts of 8 ranks.
  EXPECT_EQ(jobs[0], nlohmann::json::parse(with({"--ranks=8", "--json"}).output));
  EXPECT_EQ(jobs[1],
            nlohmann::json::parse(
                Simulate({"--config=gpt2-124m", "--hosts=8", "--link=100gbit", "--ranks=64", "--json"}).output));
}

TEST(SimulateTest, OfSeveralStrategiesItSaysWhichFitsFirst) {
  const std::string strategies = "--sharding_strategy=no_shard,shard_grad_op,full_shard";
  const ProgramResult table = Simulate({"--ranks=8,16,32", "--link=3200gbit", strategies});
  ASSERT_EQ(table.exit_status, 0) << table.errors;
  EXPECT_THAT(table.output,
              AllOf(testing::StartsWith("does not fit: 8 ranks on 1 host, no_shard, each needs "),
                    Not(HasSubstr("fits with")), HasSubstr("      load  strategy\n"), HasSubstr("  shard_grad_op\n"),
                    testing::ContainsRegex("\n  full_shard +8 ranks on 1 host: "),
                    testing::ContainsRegex("\n  no_shard +none of these\n$")));
  const nlohmann::json jobs =
      nlohmann::json::parse(Simulate({"--ranks=8,16,32", "--link=3200gbit", strategies, "--json"}).output)["jobs"];
  ASSERT_EQ(jobs.size(), 9u);
  EXPECT_EQ(jobs[4]["sharding_strategy"], "shard_grad_op");
  // Each is the job by itself.
  EXPECT_EQ(jobs[4], nlohmann::json::parse(Simulate({"--ranks=16", "--hosts=2", "--link=3200gbit", "--json",
                                                     "--sharding_strategy=shard_grad_op"})
                                               .output));
  // If none fits, what would make each fit.
  EXPECT_THAT(Simulate({"--config=llama-3.1-70b", "--sharding_strategy=no_shard,full_shard"}).output,
              AllOf(HasSubstr("no_shard, each needs"), HasSubstr("fits with"), Not(HasSubstr("none of these"))));
  ExpectUsageError({"--sharding_strategy=full_shard,half"}, "half");
  ExpectUsageError({"--sharding_strategy=full_shard,no_shard", "--trace=t.json"}, "and one strategy");
  const std::string path = testing::TempDir() + "/strategies.html";
  ASSERT_EQ(Simulate({"--ranks=8,16", strategies, "--html=" + path}).exit_status, 0);
  EXPECT_THAT(ReadFile(path), AllOf(HasSubstr("Which strategy fits"), HasSubstr("16 ranks on 2 hosts, full_shard")));
}

TEST(SimulateTest, MakesAPage) {
  const std::string path = testing::TempDir() + "/ranks.html";
  const ProgramResult result = Simulate({"--config=llama-3.1-8b", "--ranks=8,16", "--html=" + path});
  ASSERT_EQ(result.exit_status, 0) << result.errors;
  EXPECT_THAT(ReadFile(path), AllOf(HasSubstr("llama-3.<wbr>1-8b"), HasSubstr("16 ranks on 2 hosts")));
}

TEST(SimulateTest, EachFlagChangesTheNumbers) {
  const std::vector<std::string> base = {"--config=gpt2-124m", "--ranks=16", "--hosts=4", "--json"};
  const auto with = [&base](std::vector<std::string> flags) {
    flags.insert(flags.begin(), base.begin(), base.end());
    const ProgramResult result = Simulate(flags);
    EXPECT_EQ(result.exit_status, 0) << flags.back() << result.errors;
    return result.output;
  };
  const std::string before = with({"--link=10gbit"});
  for (const char* flag : {"--link_latency=1e-3",
                           "--local_link=1GB/s",
                           "--local_link_latency=1e-3",
                           "--collective_latency=1e-2",
                           "--device=a100",
                           "--achievable=0.1",
                           "--dtype=float32",
                           "--reduce_dtype=bfloat16",
                           "--sharding_strategy=shard_grad_op",
                           "--sharding_strategy=hybrid_shard",
                           "--api=fsdp2",
                           "--batch_size=3",
                           "--seq_len=77",
                           "--grad_accum=2",
                           "--activation_checkpointing=full",
                           "--activation_checkpointing=selective_op",
                           "--activation_checkpointing=selective_layer",
                           "--kernels=fused",
                           "--fused_attention=false",
                           "--loss_chunks=8",
                           "--backward_prefetch=none",
                           "--issue_seconds=0.1",
                           "--limit_all_gathers=false",
                           "--disk=1GB/s",
                           "--disk_read=1GB/s"}) {
    EXPECT_NE(with({"--link=10gbit", flag}), before) << flag;
  }
  EXPECT_NE(with({"--link=20gbit"}), before);
  const auto hybrid = [&with](const char* flag) { return with({"--sharding_strategy=hybrid_shard", flag}); };
  EXPECT_NE(hybrid("--shard_group_size=2"), hybrid("--shard_group_size=8"));
  EXPECT_NE(hybrid("--all_reduce=ring"), hybrid("--all_reduce=tree"));
  const auto late = [&with](const char* flag) {
    return with({"--batch_size=16", "--link=100gbit", "--issue_seconds=0.002", flag});
  };
  EXPECT_NE(late("--forward_prefetch"), late("--noforward_prefetch"));
  EXPECT_NE(Simulate({"--config=gpt2-124m", "--flops=1e11", "--memory_bandwidth=10GB/s", "--json"}).output,
            Simulate({"--config=gpt2-124m", "--flops=2e11", "--memory_bandwidth=10GB/s", "--json"}).output);
}

TEST(SimulateTest, AWrongCommandLineExitsWith2AndNamesTheFlag) {
  ExpectUsageError({"--config=llama-9"}, "config \"llama-9\" is no file; no GPT-2 preset");
  ExpectUsageError({"--ranks=128", "--hosts=3"}, "ranks is 128 and hosts 3");
  ExpectUsageError({"--ranks=0"}, "ranks is 0");
  ExpectUsageError({"--ranks=8,x"}, "expected numbers separated by commas");
  ExpectUsageError({"--ranks="}, "expected numbers separated by commas");
  ExpectUsageError({"--ranks=8,12"}, "--ranks has 12, expected a number up to 8");
  ExpectUsageError({"--ranks=8,16", "--trace=t.json"}, "expected one number in --ranks");
  ExpectUsageError({"--ranks=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"}, "has 17 numbers, expected at most 16");
  ExpectUsageError({"--link=fast"}, "bandwidth \"fast\": expected a number above 0 with a unit");
  ExpectUsageError({"--device=abacus"}, "no device \"abacus\"; there are a100");
  ExpectUsageError({"--device=a100", "--dtype=float8"}, "device a100 has no float8");
  ExpectUsageError({"--dtype=float64"}, "dtype \"float64\"");
  ExpectUsageError({"--reduce_dtype=float16"}, "--reduce_dtype=float16: expected float32 or bfloat16");
  ExpectUsageError({"--flops=1e12"}, "--flops and --memory_bandwidth are of one device");
  ExpectUsageError({"--flops=1e400", "--memory_bandwidth=1GB/s"}, "--flops is inf, wanted a finite number above 0");
  ExpectUsageError({"--sharding_strategy=half"}, "half");
  ExpectUsageError({"--seq_len=-1"}, "seq_len -1");
  ExpectUsageError({"--batch_size=9223372036854775807"}, "batch_size is 9223372036854775807");
  ExpectUsageError({"--grad_accum=1000000"}, "grad_accum is 1000000, wanted at most 31775");
  ExpectUsageError({"--config=gpt2-124m", "--seq_len=4096"}, "wanted at most 1024");
  ExpectUsageError({"--link_latency=-1"}, "host_latency is -1");
  ExpectUsageError({"--issue_seconds=-1"}, "issue takes -1 s");
  ExpectUsageError({"--steps=3"}, "steps");
  ExpectUsageError({"extra"}, "extra");
}

TEST(SimulateTest, AFileThatCannotBeReadOrWrittenExitsWith1) {
  const ProgramResult read = Simulate({"--published=no/such/file"});
  EXPECT_EQ(read.exit_status, 1);
  EXPECT_THAT(read.errors, HasSubstr("--published: no/such/file cannot be read"));
  const ProgramResult written = Simulate({"--config=gpt2-124m", "--trace=no/such/directory/t.json"});
  EXPECT_EQ(written.exit_status, 1);
  EXPECT_THAT(written.errors, HasSubstr("--trace=no/such/directory/t.json: "));
}

// Reading /dev/zero would never end.
TEST(SimulateTest, AFileThatIsNoSmallRegularFileIsRefused) {
  const ProgramResult device = Simulate({"--published=/dev/zero"});
  EXPECT_EQ(device.exit_status, 1);
  EXPECT_THAT(device.errors, HasSubstr("--published: /dev/zero is not a regular file"));
  const std::string path = testing::TempDir() + "/large.json";
  std::ofstream(path) << "{";
  std::filesystem::resize_file(path, 17 << 20);
  const ProgramResult large = Simulate({"--published=" + path});
  EXPECT_EQ(large.exit_status, 1);
  EXPECT_THAT(large.errors, HasSubstr("has more than 16777216 bytes"));
  ExpectUsageError({"--config=" + path}, "has more than 16777216 bytes");
}

TEST(SimulateTest, TheTextOfAConfigDoesNotCommandTheTerminal) {
  const std::string hostile = "a\x1b[31m\r\xE2\x80\xAE", path = testing::TempDir() + "/" + hostile;
  for (const char* member : {"model_type", "hidden_act", "rope_scaling", "x\x1b[31m"}) {
    std::ofstream(path) << nlohmann::json({{member, hostile}});
    const ProgramResult result = Simulate({"--config=" + path});
    EXPECT_EQ(result.exit_status, 2);
    EXPECT_THAT(result.errors, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r")), Not(HasSubstr("\xE2\x80\xAE"))));
  }
}

TEST(SimulateTest, TheTraceHasTheEventsOfTheStep) {
  const std::string path = testing::TempDir() + "/trace.json";
  ASSERT_EQ(Simulate({"--config=gpt2-124m", "--ranks=8", "--trace=" + path}).exit_status, 0);
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  EXPECT_GT(trace["traceEvents"].size(), 12u * 4);
}

TEST(SimulateTest, PrintsThePublishedRunsBesideWhatIsSimulated) {
  const ProgramResult result = Simulate({"--published=" + FindRunfile("tools/simulation/published_runs.json").value()});
  ASSERT_EQ(result.exit_status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("| 8B, compiled, 128 H100 | torchtitan H100 compiled | 6514 |"));
}

}  // namespace
}  // namespace fsdp
