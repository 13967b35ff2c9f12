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
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/terminal.h"
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
  int (*run)(const CommandLine&);

  // A flag of type bool that selects other operands.
  std::string other_form = {};
  std::vector<std::string> other_operands = {};

  bool takes_urls = false;  // of an object store
};

const std::vector<Subcommand>& Subcommands() {
  // Never destroyed: an exit during a command must not race with its threads.
  static const auto* subcommands = new std::vector<Subcommand>{
      {"inspect",
       {"PATH"},
       "what it is: kind, step, world size, tensors, bytes, who holds what",
       {"tensors", "html", "flat_layout", "map", "skip_links", "diff_options", "endpoint_url", "json"},
       RunInspect,
       "diff_options",
       {"A", "B"},
       true},
      {"verify",
       {"PATH"},
       "reads everything: every digest, coverage, structure; names what is damaged",
       {"flat_layout", "map", "skip_links", "json"},
       RunVerify},
      {"convert",
       {"SRC", "DST"},
       "makes DST from SRC in another format, kind, world size or dtype, or with other names",
       {"to", "state_dict_type", "world_size", "dtype", "step", "include", "exclude", "rename", "model_only",
        "max_shard_size", "parity", "max_memory", "flat_layout", "map", "skip_links", "allow_expanded", "force",
        "json"},
       RunConvert},
      {"view",
       {"SRC", "OUT.h5"},
       "makes a small HDF5 file that shows a safetensors, torch or DCP checkpoint's tensors in place",
       {"flat_layout", "map", "force", "json"},
       RunView},
      {"diff",
       {"A", "B"},
       "what differs, in structure and values, across kinds, formats and world sizes; exit 0 when equal, 1 when not",
       {"atol", "rtol", "top", "model_only", "flat_layout", "map", "skip_links", "json"},
       RunDiff},
      {"prune",
       {"DIR"},
       "deletes old step-* checkpoints of DIR and what crashes left there; never the last one that verifies",
       {"keep_last", "keep_every", "dry_run", "json"},
       RunPrune},
      {"repair",
       {"PATH"},
       "makes lost or damaged files again, from parity and from the rank files' own records",
       {"dry_run", "json"},
       RunRepair},
      {"push",
       {"SRC", "s3://BUCKET/PREFIX"},
       "verifies SRC and copies it to an object store, as PREFIX/step-*; it appears when it is complete",
       {"endpoint_url", "force", "json"},
       RunPush,
       {},
       {},
       true},
      {"pull",
       {"s3://BUCKET/PREFIX", "DST"},
       "copies a checkpoint of an object store, or the newest step-* of PREFIX, to DST, and verifies every byte",
       {"endpoint_url", "force", "json"},
       RunPull,
       {},
       {},
       true},
  };
  return *subcommands;
}

// "inspect, verify, convert".
std::string SubcommandNames() {
  return absl::StrJoin(Subcommands(), ", ",
                       [](std::string* out, const Subcommand& subcommand) { out->append(subcommand.name); });
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

void PrintHelp(const Subcommand& subcommand) {
  Print("usage: %s\n%s\n\n%s", Synopsis(subcommand), subcommand.summary, FlagHelp(subcommand.flags));
}

void PrintHelp(bool full) {
  Print("usage: ckpt SUBCOMMAND ...\n\n");
  for (const Subcommand& subcommand : Subcommands()) {
    Print("  %s\n      %s\n", Synopsis(subcommand), subcommand.summary);
  }
  Print(
      "\nPATH, SRC, A and B are a checkpoint directory, a directory of step-* checkpoints (its newest step), a "
      "checkpoint.h5\n"
      "by itself, a safetensors file, a Hugging Face directory, a torch file (.pt, .pth, .bin) or a DCP directory;\n"
      "of inspect also a checkpoint or run in an object store, s3://BUCKET/PREFIX. "
      "Exit "
      "status:\n"
      "0 done; 1 a problem was found or the work failed; 2 the command line is wrong.\n"
      "ckpt SUBCOMMAND --help shows the flags of one, ckpt --helpfull the flags of all, ckpt --version the release.\n");
  if (!full) return;
  for (const Subcommand& subcommand : Subcommands()) {
    Print("\n");
    PrintHelp(subcommand);
  }
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

int RunSubcommand(const Subcommand& subcommand, const CommandLine& line) {
  const std::string program = absl::StrCat("ckpt ", subcommand.name);
  absl::Status status = SetFlags(line, program, subcommand.flags);
  if (status.ok()) status = CheckOperands(subcommand, line);
  if (!status.ok()) return ReportUsageError(program, status);
  EnterCallersDirectory();
  if (!subcommand.takes_urls) {
    if (const absl::Status files = CheckAreFiles(line.operands); !files.ok()) {
      if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(files));
      return ReportFailure(program, files);
    }
  }
  return subcommand.run(line);
}

int Main(int argc, char** argv) {
  // A file that outgrows its limit (ulimit -f) is then an error like a full disk, and does not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  absl::StatusOr<CommandLine> line = ReadCommandLine(argc, argv);
  if (!line.ok()) return ReportUsageError("ckpt", line.status());
  if (line->version) return PrintVersion("ckpt");
  if (line->operands.empty()) {
    if (!line->help && !line->helpfull) {
      return ReportUsageError("ckpt",
                              absl::InvalidArgumentError(absl::StrCat("a subcommand is missing: ", SubcommandNames())));
    }
    PrintHelp(line->helpfull);
    return kExitDone;
  }
  const std::string name = line->operands.front();
  line->operands.erase(line->operands.begin());
  for (const Subcommand& subcommand : Subcommands()) {
    if (subcommand.name != name) continue;
    if (!line->help && !line->helpfull) return RunSubcommand(subcommand, *line);
    PrintHelp(subcommand);
    return kExitDone;
  }
  return ReportUsageError("ckpt", absl::InvalidArgumentError(absl::StrCat(
                                      "\"", name, "\" is not a subcommand; expected ", SubcommandNames())));
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
