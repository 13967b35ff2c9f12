// SPDX-License-Identifier: Apache-2.0
//
// Every output of every program, by flag and by operand, against everything that is not the program's to write: each
// try is refused with the path and what to do, and every byte stays. A flag or a subcommand that is new must be listed
// here; formats are tried as the table of formats has them.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kPrograms[] = {"examples/quickstart", "tools/ckpt",     "tools/launch",
                                     "tools/report",        "tools/simulate", "train/train_gpt"};

// Flags without a default, among which are all that name a file: "PROGRAM --FLAG".
const std::set<std::string> kOutputs = {
    "examples/quickstart --output_dir",
    "tools/ckpt --html",
    "tools/report --html",
    "tools/simulate --html",
    "tools/simulate --trace",
    "train/train_gpt --export",
    "train/train_gpt --checkpoint_dir",
    "train/train_gpt --metrics",
    "train/train_gpt --trace",
    "train/train_gpt --tensorboard",
};
const std::set<std::string> kOthers = {
    "tools/ckpt --dtype",
    "tools/ckpt --endpoint_url",
    "tools/ckpt --exclude",
    "tools/ckpt --flat_layout",
    "tools/ckpt --include",
    "tools/ckpt --map",
    "tools/ckpt --outtype",
    "tools/ckpt --recipe",
    "tools/ckpt --rename",
    "tools/ckpt --sort",
    "tools/ckpt --step",
    "tools/ckpt --template",
    "tools/ckpt --to",
    "tools/launch --master_addr",
    "tools/launch --run_id",
    "tools/simulate --memory_bandwidth",
    "tools/simulate --published",
    "train/train_gpt --allow",
    "train/train_gpt --config",
    "train/train_gpt --data",
    "train/train_gpt --flat_layout",
    "train/train_gpt --freeze",
    "train/train_gpt --growth_interval",
    "train/train_gpt --init_from",
    "train/train_gpt --init_scale",
    "train/train_gpt --map",
    "train/train_gpt --min_lr",
    "train/train_gpt --momentum",
    "train/train_gpt --nproc",
    "train/train_gpt --output_dtype",
    "train/train_gpt --param_dtype",
    "train/train_gpt --run_id",
    "train/train_gpt --tokens",
    "train/train_gpt --upload",
};

// Subcommands of ckpt that write what an operand names, and the others.
const std::set<std::string> kWriters = {"convert", "merge", "view", "pull"};
const std::set<std::string> kOtherSubcommands = {"inspect", "verify", "diff", "prune", "repair", "push"};

ProgramResult RunTool(const std::string& program, const Flags& arguments) {
  absl::StatusOr<std::string> path = FindRunfile(program);
  EXPECT_OK(path.status());
  if (!path.ok()) return {};
  const ChildOptions options = {.unset = {"RANK", "WORLD_SIZE", "BUILD_WORKING_DIRECTORY"}};
  absl::StatusOr<ProgramResult> result = RunProgram(Flags{*path} + arguments, absl::Minutes(1), options);
  EXPECT_OK(result.status()) << program << testing::PrintToString(arguments);
  return result.ok() ? *std::move(result) : ProgramResult{};
}

TEST(OutputFlagsTest, EveryFlagThatCanNameAFileIsKnownAsAnOutputOrNot) {
  std::set<std::string> flags;
  for (const std::string program : kPrograms) {
    const ProgramResult help = RunTool(program, {"--helpfull"});
    // A line that is continued is indented further.
    const std::string unwrapped = absl::StrReplaceAll(help.output, {{"\n      ", " "}});
    for (const absl::string_view line : absl::StrSplit(unwrapped, '\n')) {
      const size_t value = line.find("=VALUE: ");
      if (!absl::StartsWith(line, "  --") || value == line.npos || absl::StrContains(line, "; default: ")) continue;
      flags.insert(absl::StrCat(program, " ", line.substr(2, value - 2)));
    }
  }
  std::set<std::string> known = kOutputs;
  known.insert(kOthers.begin(), kOthers.end());
  EXPECT_EQ(flags, known) << "add a new flag to kOutputs, and to Commands below, or to kOthers";
}

TEST(OutputFlagsTest, EverySubcommandIsKnownAsOneThatWritesAnOperandOrNot) {
  std::set<std::string> subcommands;
  for (const absl::string_view line : absl::StrSplit(RunTool("tools/ckpt", {"--help"}).output, '\n')) {
    if (!absl::StartsWith(line, "  ckpt ")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    subcommands.insert(words.at(1));
  }
  std::set<std::string> known = kWriters;
  known.insert(kOtherSubcommands.begin(), kOtherSubcommands.end());
  EXPECT_EQ(subcommands, known) << "add a new subcommand to kWriters, and to Commands below, or to kOtherSubcommands";
}

// A command line with "{}" for the output, and the files that it reads.
struct Command {
  std::string program;
  Flags arguments;
  std::vector<std::string> reads;
};

// In one directory: saved/, a run of two steps; dcp/, model and model.gguf, its last step in other formats; adapter/,
// of which only names matter; metrics.jsonl; config.json; tokens.u16.
class OutputsTest : public testing::Test {
 protected:
  OutputsTest() {
    fs::copy_file(Golden("tokens.u16"), Path("tokens.u16"));
    fs::copy_file(Golden("gpt2_tiny/config.json"), Path("config.json"));
    for (const char* name : {"tokens.u16", "config.json"}) {
      fs::permissions(Path(name), fs::perms::owner_write, fs::perm_options::add);
    }
    Must("train/train_gpt",
         Training() + Flags{"--checkpoint_dir=" + Path("saved"), "--metrics=" + Path("metrics.jsonl")});
    Must("tools/ckpt", {"convert", Path("saved"), Path("dcp"), "--to=dcp"});
    Must("tools/ckpt", {"convert", Path("saved"), Path("model"), "--to=torch"});
    Must("tools/ckpt", {"convert", Path("saved"), Path("model.gguf"), "--model_only"});
    fs::create_directory(Path("adapter"));
    std::ofstream(Path("adapter/adapter_config.json")) << R"({"peft_type": "LORA"})";
    std::ofstream(Path("adapter/adapter_model.safetensors")) << "weights";
    fs::create_directory(Path("trainer"));
    std::ofstream(Path("trainer/mp_rank_00_model_states.pt")) << "DeepSpeed's";
    EXPECT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
    fs::create_symlink("fifo", Path("fifo_link"));
    fs::create_symlink("saved/step-00000002/new", Path("step_link"));
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  Flags Training() const {
    return {"--nproc=1",
            "--steps=2",
            "--batch_size=1",
            "--seq_len=16",
            "--config=" + Path("config.json"),
            "--resume=none",
            "--tokens=" + Path("tokens.u16")};
  }

  static void Must(const std::string& program, const Flags& arguments) {
    const ProgramResult result = RunTool(program, arguments);
    EXPECT_EQ(result.exit_status, 0) << program << result.output;
  }

  std::vector<Command> Commands() const {
    const std::string metrics = Path("metrics.jsonl"), config = Path("config.json"), model = Path("model");
    const std::string adapter = Path("adapter/adapter_model.safetensors"), gguf = Path("model.gguf");
    const std::string adapter_config = Path("adapter/adapter_config.json");
    std::vector<Command> commands = {
        {"examples/quickstart", {"--output_dir={}"}, {}},
        {"tools/ckpt", {"inspect", model, "--html={}"}, {model}},
        {"tools/ckpt", {"inspect", Path("saved"), "--html={}"}, {}},
        {"tools/ckpt", {"diff", model, Path("dcp"), "--html={}"}, {model}},
        {"tools/ckpt", {"convert", model, "{}", "--to=gguf", "--template=" + gguf, "--force"}, {model, gguf}},
        {"tools/ckpt",
         {"merge", model, adapter, "{}", "--to=safetensors", "--force"},
         {model, adapter, adapter_config}},
        {"tools/ckpt", {"view", model, "{}", "--force"}, {model}},
        {"tools/ckpt", {"pull", "s3://bucket/run", "{}", "--force"}, {}},
        {"tools/report", {metrics, "--html={}"}, {metrics}},
        {"tools/simulate", {"--config=" + config, "--ranks=2", "--trace={}"}, {config}},
        {"tools/simulate", {"--config=" + config, "--ranks=2,4", "--html={}"}, {config}},
    };
    for (const Format& format : Formats()) {
      if (!format.target) continue;
      const std::string to = "--to=" + format.driver->name();
      commands.push_back({"tools/ckpt", {"convert", model, "{}", to, "--force"}, {model}});
    }
    for (const char* flag : {"export", "checkpoint_dir", "metrics", "trace", "tensorboard"}) {
      commands.push_back(
          {"train/train_gpt", Training() + Flags{absl::StrCat("--", flag, "={}")}, {config, Path("tokens.u16")}});
    }
    return commands;
  }

  // Every name in the directory, with the bytes of files.
  std::map<std::string, std::string> Snapshot() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      all[entry.path()] = entry.is_regular_file() ? ReadFile(entry.path()) : "";
    }
    return all;
  }

  const std::string directory_ = NewDirectory();
};

TEST_F(OutputsTest, NoProgramHarmsWhatItDidNotMake) {
  const auto before = Snapshot();
  for (const Command& command : Commands()) {
    std::vector<std::string> outputs = command.reads;
    for (const std::string& read : command.reads)
      outputs.push_back(absl::StrCat(directory_, "/./", read.substr(directory_.size())));
    for (const char* name : {"dcp/.metadata", "saved/step-00000002/new", "step_link", "fifo", "fifo_link",
                             "trainer/mp_rank_00_model_states.pt"}) {
      outputs.push_back(Path(name));
    }
    outputs.push_back("/dev/null");
    if (command.program != "tools/ckpt") outputs.push_back("s3://bucket/run");  // ckpt has words of its own
    for (const std::string& output : outputs) {
      Flags arguments = command.arguments;
      for (std::string& argument : arguments) argument = absl::StrReplaceAll(argument, {{"{}", output}});
      const ProgramResult result = RunTool(command.program, arguments);
      const std::string shown = command.program + " " + testing::PrintToString(arguments);
      // A name of another format is refused before its place is looked at.
      const bool is_misnamed = absl::StrContains(result.output, "but the format to write is");
      EXPECT_EQ(result.exit_status, is_misnamed ? 2 : 1) << shown << result.output;
      EXPECT_THAT(result.output,
                  AllOf(HasSubstr(output), HasSubstr(is_misnamed ? "choose another name" : "choose another place")))
          << shown;
      ASSERT_TRUE(Snapshot() == before) << shown << " changed something";
    }
  }
}

TEST_F(OutputsTest, EveryOutputFlagAndOperandIsTried) {
  std::set<std::string> tried, operands;
  for (const Command& command : Commands()) {
    for (const std::string& argument : command.arguments) {
      const size_t equals = argument.find("={}");
      if (equals != std::string::npos) tried.insert(command.program + " " + argument.substr(0, equals));
      if (argument == "{}") operands.insert(command.arguments[0]);
    }
  }
  EXPECT_EQ(tried, kOutputs);
  EXPECT_EQ(operands, kWriters);
}

}  // namespace
}  // namespace fsdp
