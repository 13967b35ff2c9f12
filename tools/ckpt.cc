// SPDX-License-Identifier: Apache-2.0
//
// ckpt: inspects, verifies and converts checkpoints on any machine: without a GPU, Python or ranks.
//
//   ckpt inspect checkpoints                                    # the newest step
//   ckpt inspect --diff_options checkpoints/step-00000100 other/step-00000100
//   ckpt verify checkpoints/step-00000100
//   ckpt convert checkpoints model.safetensors --dtype=bfloat16
//   ckpt diff checkpoints/step-00000100 checkpoints/step-00000200
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/suggestion.h"
#include "fsdp/base/terminal.h"
#include "fsdp/base/wrap_text.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/commands/commands.h"

namespace fsdp {
namespace {

// A row of the table of subcommands: its operands and flags are checked here, before it runs.
struct Subcommand {
  std::string name;
  std::vector<std::string> operands;
  std::string summary;
  std::vector<std::string> flags;
  std::vector<std::string> examples;
  int (*run)(const CommandLine&);
  std::vector<std::string> urls = {};  // of all operands: those that may be in an object store

  // A flag of type bool that selects other operands.
  std::string other_form = {};
  std::vector<std::string> other_operands = {};
};

const std::vector<Subcommand>& Subcommands() {
  // Never destroyed: an exit during a command must not race with its threads.
  static const auto* subcommands = new std::vector<Subcommand>{
      {"inspect",
       {"PATH"},
       "what it is: kind, step, world size, tensors, bytes, who holds what",
       {"tensors", "sort", "html", "max_memory", "flat_layout", "map", "skip_links", "diff_options", "endpoint_url",
        "json"},
       {"ckpt inspect runs", "ckpt inspect model.safetensors --tensors --sort=size",
        "ckpt inspect runs --html=run.html"},
       RunInspect,
       {"PATH", "A", "B"},
       "diff_options",
       {"A", "B"}},
      {"verify",
       {"PATH"},
       "reads everything: every digest, coverage, structure; names what is damaged",
       {"flat_layout", "map", "skip_links", "endpoint_url", "json"},
       {"ckpt verify runs/step-00000100", "ckpt verify runs --json", "ckpt verify s3://models/gpt2"},
       RunVerify,
       {"PATH"}},
      {"convert",
       {"SRC", "DST"},
       "makes DST from SRC in another format, kind, world size or dtype, or with other names",
       {"to",         "state_dict_type", "world_size",   "dtype",          "step",        "include",
        "exclude",    "rename",          "model_only",   "max_shard_size", "parity",      "template",
        "outtype",    "keep_quantized",  "recipe",       "max_memory",     "flat_layout", "map",
        "skip_links", "allow_expanded",  "endpoint_url", "force",          "json"},
       {"ckpt convert runs model.safetensors --dtype=bfloat16",
        "ckpt convert model.pt sharded --state_dict_type=sharded --world_size=4",
        "ckpt convert s3://models/gpt2 model.h5"},
       RunConvert,
       {"SRC"}},
      {"merge",
       {"BASE", "ADAPTER", "OUT"},
       "makes OUT from a base model and a LoRA adapter of PEFT for it; by default a Hugging Face directory",
       {"to", "state_dict_type", "world_size", "dtype", "step", "include", "exclude", "rename", "max_shard_size",
        "parity", "max_memory", "flat_layout", "map", "skip_links", "allow_expanded", "force", "json"},
       {"ckpt merge Llama-3.2-1B adapter merged", "ckpt merge base.pt adapter merged.pt --dtype=bfloat16"},
       RunMerge},
      {"view",
       {"SRC", "OUT.h5"},
       "makes a small HDF5 file that shows a safetensors, torch or DCP checkpoint's tensors in place",
       {"relative", "flat_layout", "map", "force", "json"},
       {"ckpt view model.safetensors model.h5", "ckpt view dcp_directory dcp_directory.h5 --relative"},
       RunView},
      {"diff",
       {"A", "B"},
       "what differs, in structure and values, across kinds, formats and world sizes; exit 0 when equal, 1 when not",
       {"atol", "rtol", "top", "html", "model_only", "flat_layout", "map", "skip_links", "endpoint_url", "json"},
       {"ckpt diff runs/step-00000100 runs/step-00000200 --top=3", "ckpt diff model.safetensors runs --model_only",
        "ckpt diff before.safetensors after.safetensors --html=diff.html"},
       RunDiff,
       {"A", "B"}},
      {"prune",
       {"DIR"},
       "deletes old step-* checkpoints of DIR and what crashes left there; never the last one that verifies",
       {"keep_last", "keep_every", "dry_run", "json"},
       {"ckpt prune runs --keep_last=3 --dry_run", "ckpt prune runs --keep_last=3 --keep_every=1000"},
       RunPrune},
      {"repair",
       {"PATH"},
       "makes lost or damaged files again, from parity and from the rank files' own records",
       {"dry_run", "json"},
       {"ckpt repair runs/step-00000100 --dry_run", "ckpt repair runs/step-00000100"},
       RunRepair},
      {"push",
       {"SRC", "s3://BUCKET/PREFIX"},
       "verifies SRC and copies it to an object store, as PREFIX/step-*; it appears when it is complete",
       {"endpoint_url", "force", "json"},
       {"ckpt push runs s3://models/gpt2", "ckpt push runs/step-00000100 s3://models/gpt2 --force"},
       RunPush,
       {"s3://BUCKET/PREFIX"}},
      {"pull",
       {"s3://BUCKET/PREFIX", "DST"},
       "copies a checkpoint of an object store, or the newest step-* of PREFIX, to DST, and verifies every byte",
       {"endpoint_url", "force", "json"},
       {"ckpt pull s3://models/gpt2 checkpoint", "ckpt pull s3://models/gpt2/step-00000100 checkpoint"},
       RunPull,
       {"s3://BUCKET/PREFIX"}},
  };
  return *subcommands;
}

// Those of Subcommands, and those that only Main knows.
std::vector<std::string> SubcommandNames() {
  std::vector<std::string> names;
  for (const Subcommand& subcommand : Subcommands()) names.push_back(subcommand.name);
  names.insert(names.end(), {"help", "version"});
  return names;
}

const Subcommand* FindSubcommand(const std::string& name) {
  for (const Subcommand& subcommand : Subcommands()) {
    if (subcommand.name == name) return &subcommand;
  }
  return nullptr;
}

absl::Status NoSubcommand(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a subcommand",
                                                 DidYouMean(name, SubcommandNames()), "; expected ",
                                                 absl::StrJoin(SubcommandNames(), ", ")));
}

// "ckpt inspect PATH [flags]; ckpt inspect --diff_options A B [flags]".
std::string Synopsis(const Subcommand& subcommand) {
  const std::string name = absl::StrCat("ckpt ", subcommand.name, " ");
  const std::string text = absl::StrCat(name, absl::StrJoin(subcommand.operands, " "), " [flags]");
  if (subcommand.other_form.empty()) return text;
  return absl::StrCat(text, "; ", name, "--", subcommand.other_form, " ", absl::StrJoin(subcommand.other_operands, " "),
                      " [flags]");
}

// The operands that this command line must have. Precondition: its flags are set.
const std::vector<std::string>& OperandsOf(const Subcommand& subcommand) {
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(subcommand.other_form);
  const bool is_other = flag != nullptr && flag->TryGet<bool>().value_or(false);
  return is_other ? subcommand.other_operands : subcommand.operands;
}

constexpr char kExitStatus[] =
    "exit status: 0 done; 1 a problem was found or the work failed; 2 the command line is wrong.\n";

constexpr char kEnvironment[] =
    "environment: COLUMNS, the width of this text; NO_COLOR, for output without colours; with s3:// also the variables "
    "of the AWS tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION, "
    "AWS_ENDPOINT_URL_S3.\n";

std::string Help(const Subcommand& subcommand) {
  std::string text = absl::StrCat("usage: ", Synopsis(subcommand), "\n", subcommand.summary, "\n\n",
                                  FlagHelp(subcommand.flags), "\nexamples:\n");
  for (const std::string& example : subcommand.examples) absl::StrAppend(&text, "  ", example, "\n");
  return absl::StrCat(text, "\n", kExitStatus, kEnvironment);
}

std::string Summaries() {
  std::string text;
  for (const Subcommand& subcommand : Subcommands()) {
    absl::StrAppend(&text, "  ", Synopsis(subcommand), "\n      ", subcommand.summary, "\n");
  }
  return text;
}

std::string Help(bool full) {
  std::string text = absl::StrCat(
      "usage: ckpt SUBCOMMAND ...\n\n", Summaries(),
      "\nPATH, SRC, A and B are a checkpoint directory, a directory of step-* checkpoints (its newest step), a "
      "checkpoint.h5 by itself, a safetensors file, a Hugging Face directory, a torch file (.pt, .pth, .bin), an .npz "
      "file or a DCP directory; of inspect, verify, convert and diff also a checkpoint or run that ckpt push has put "
      "into an object store, s3://BUCKET/PREFIX.\n\n",
      kExitStatus, kEnvironment,
      "\nckpt help SUBCOMMAND shows the flags of one, ckpt --helpfull the flags of all, ckpt version the release.\n");
  if (!full) return text;
  for (const Subcommand& subcommand : Subcommands()) absl::StrAppend(&text, "\n", Help(subcommand));
  return text;
}

int PrintHelp(const std::string& text) {
  Print("%s", WrapText(text, HelpColumns()));
  return kExitDone;
}

// An error of the command line; with --json (`is_json`) the object on stdout, too.
int Refuse(const std::string& program, const absl::Status& status, bool is_json) {
  if (is_json) Print("%s", ProblemJson(status));
  return ReportUsageError(program, status);
}

// A flag that other subcommands have: which ones. SetFlags refuses it without.
absl::Status CheckFlags(const Subcommand& subcommand, const CommandLine& line) {
  const auto has = [](const Subcommand& other, const std::string& flag) {
    return std::find(other.flags.begin(), other.flags.end(), flag) != other.flags.end();
  };
  for (const auto& [flag, value] : line.flags) {
    if (has(subcommand, flag)) continue;
    std::vector<std::string> others;
    for (const Subcommand& other : Subcommands()) {
      if (has(other, flag)) others.push_back(other.name);
    }
    return absl::InvalidArgumentError(absl::StrCat("ckpt ", subcommand.name, " has no flag --", flag, ", which is for ",
                                                   absl::StrJoin(others, ", ")));
  }
  return absl::OkStatus();
}

absl::Status CheckOperands(const Subcommand& subcommand, const CommandLine& line) {
  const std::vector<std::string>& operands = OperandsOf(subcommand);
  const size_t wanted = operands.size();
  if (line.operands.size() < wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(operands[line.operands.size()], " is missing; usage: ", Synopsis(subcommand)));
  }
  if (line.operands.size() > wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", line.operands[wanted], "\"; usage: ", Synopsis(subcommand)));
  }
  return absl::OkStatus();
}

// --endpoint_url would be ignored without a URL.
absl::Status CheckEndpointApplies(const Subcommand& subcommand, const CommandLine& line) {
  if (absl::GetFlag(FLAGS_endpoint_url).empty()) return absl::OkStatus();
  if (std::any_of(line.operands.begin(), line.operands.end(), IsS3Url)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--endpoint_url is for ", absl::StrJoin(subcommand.urls, " or "), " that is s3://BUCKET/PREFIX"));
}

// The operands of this command line that must be paths.
std::vector<std::string> PathsOf(const Subcommand& subcommand, const CommandLine& line) {
  const std::vector<std::string>& names = OperandsOf(subcommand);
  const std::vector<std::string>& urls = subcommand.urls;
  std::vector<std::string> paths;
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::find(urls.begin(), urls.end(), names[i]) == urls.end()) paths.push_back(line.operands[i]);
  }
  return paths;
}

int RunSubcommand(const Subcommand& subcommand, const CommandLine& line, bool is_json) {
  const std::string program = absl::StrCat("ckpt ", subcommand.name);
  absl::Status status = CheckFlags(subcommand, line);
  if (status.ok()) status = SetFlags(line, program, subcommand.flags);
  if (status.ok()) status = CheckOperands(subcommand, line);
  if (status.ok()) status = CheckEndpointApplies(subcommand, line);
  if (!status.ok()) return Refuse(program, status, is_json);
  EnterCallersDirectory();
  absl::Status files = CheckAreFiles(PathsOf(subcommand, line));
  if (files.ok()) files = CheckAreNoOtherUrls(line.operands);
  if (!files.ok()) {
    if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(files));
    return ReportFailure(program, files);
  }
  return subcommand.run(line);
}

// "ckpt help", "ckpt help SUBCOMMAND".
int RunHelp(const CommandLine& line, bool is_json) {
  if (line.operands.empty()) return PrintHelp(Help(line.helpfull));
  const Subcommand* const subcommand = FindSubcommand(line.operands[0]);
  return subcommand != nullptr ? PrintHelp(Help(*subcommand)) : Refuse("ckpt", NoSubcommand(line.operands[0]), is_json);
}

// "ckpt SUBCOMMAND help", unless that is a file.
bool AsksForHelp(const CommandLine& line) {
  std::error_code ignored;
  return line.help || line.helpfull ||
         (line.operands == std::vector<std::string>{"help"} && line.flags.empty() &&
          !std::filesystem::exists("help", ignored));
}

// An error of the flags is one of the subcommand that the arguments seem to have; null if they have none.
const Subcommand* SubcommandIn(const std::vector<std::string>& arguments) {
  const auto at = std::find_if(arguments.begin(), arguments.end(),
                               [](const std::string& argument) { return FindSubcommand(argument) != nullptr; });
  return at == arguments.end() ? nullptr : FindSubcommand(*at);
}

int Main(int argc, char** argv) {
  KeepStandardStreams();
  // A file that outgrows its limit (ulimit -f) is then an error like a full disk, and does not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const bool is_json = WantsJson(argc, argv);
  const Subcommand* const seems = SubcommandIn({argv + std::min(argc, 1), argv + argc});
  absl::StatusOr<CommandLine> line =
      ReadCommandLine(argc, argv, seems == nullptr ? std::vector<std::string>() : seems->flags);
  if (!line.ok()) {
    return Refuse(seems == nullptr ? "ckpt" : absl::StrCat("ckpt ", seems->name), line.status(), is_json);
  }
  if (line->version) return PrintVersion("ckpt");
  if (line->operands.empty()) {
    if (line->help || line->helpfull) return RunHelp(*line, is_json);
    const int status = Refuse("ckpt", absl::InvalidArgumentError("a subcommand is missing"), is_json);
    PrintError("\n%s", WrapText(Summaries(), HelpColumns()));
    return status;
  }
  const std::string name = line->operands.front();
  line->operands.erase(line->operands.begin());
  if (name == "help") return RunHelp(*line, is_json);
  if (name == "version") return PrintVersion("ckpt");
  const Subcommand* const subcommand = FindSubcommand(name);
  if (subcommand == nullptr) return Refuse("ckpt", NoSubcommand(name), is_json);
  if (AsksForHelp(*line)) return PrintHelp(Help(*subcommand));
  return RunSubcommand(*subcommand, *line, is_json);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::FinishOutput("ckpt", fsdp::Main(argc, argv)); }
