// SPDX-License-Identifier: Apache-2.0
//
// ckpt inspect: the summary comes only from metadata, so it takes the same time for any size of model, and of a ROOT no
// step is verified. Only --html reads values: of a checkpoint for its histograms, of a ROOT for what changed.
#include <algorithm>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/commands/commands.h"
#include "fsdp/tools/commands/pages.h"
#include "fsdp/tools/inspect/ckpt_summary.h"
#include "fsdp/tools/inspect/options_diff.h"
#include "fsdp/tools/inspect/run_history.h"

namespace fsdp {
namespace {

// The page, unless it is empty, must be neither an input nor inside a checkpoint. This is checked before anything is
// read.
absl::StatusOr<CheckpointSummary> SummariseFor(const std::string& page, const std::string& source) {
  InputPaths inputs;
  AddCheckpoint(source, inputs);
  inputs.Add(absl::GetFlag(FLAGS_flat_layout));
  if (!page.empty()) FSDP_RETURN_IF_ERROR(CheckOutput(page, inputs));
  return Summarise(source);
}

absl::Status WritePage(const std::string& page, CheckpointSummary& summary) {
  return summary.traits().is_root ? WriteRunPage(page, summary) : WriteCheckpointPage(page, summary);
}

// OK unless --max_memory was given and is too small, or given without a page about a run.
absl::Status CheckMaxMemory(const CommandLine& line, const std::string& page, const CheckpointSummary& summary) {
  const auto is_max_memory = [](const auto& flag) { return flag.first == "max_memory"; };
  if (std::none_of(line.flags.begin(), line.flags.end(), is_max_memory)) return absl::OkStatus();
  if (page.empty() || !summary.traits().is_root) {
    return absl::InvalidArgumentError("--max_memory is for --html of a run, a directory of step-* checkpoints");
  }
  if (absl::GetFlag(FLAGS_max_memory).bytes >= kMinRunHistoryMemory) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--max_memory=", absl::GetFlag(FLAGS_max_memory).bytes,
                                                 ", expected at least ", kMinRunHistoryMemory >> 20, "MiB"));
}

absl::StatusOr<ListedTensors> TensorsFromFlags() {
  const SwitchOrTextFlag flag = absl::GetFlag(FLAGS_tensors);
  const std::string sort = absl::GetFlag(FLAGS_sort);
  if (!sort.empty() && sort != "size" && sort != "name") {
    return absl::InvalidArgumentError(absl::StrCat("--sort=", Printable(sort), ", expected one of: size, name"));
  }
  if (!sort.empty() && !flag.is_on) return absl::InvalidArgumentError("--sort is for the list of --tensors: add that");
  NameFilter::Patterns patterns;
  if (!flag.text.empty()) patterns.include.push_back(flag.text);
  ListedTensors tensors;
  tensors.is_wanted = flag.is_on;
  if (!sort.empty()) tensors.order = sort == "size" ? TensorOrder::kBySize : TensorOrder::kByName;
  FSDP_ASSIGN_OR_RETURN(tensors.filter, NameFilter::Create(patterns));
  return tensors;
}

// Both sides are opened before anything is printed.
int RunDiffOptions(const CommandLine& line) {
  if (absl::GetFlag(FLAGS_tensors).is_on || !absl::GetFlag(FLAGS_html).empty()) {
    return ReportUsage("ckpt inspect",
                       absl::InvalidArgumentError("--diff_options: expected neither --tensors nor --html with it"));
  }
  const bool json = absl::GetFlag(FLAGS_json);
  absl::StatusOr<CheckpointSummary> sides[2];
  for (int i = 0; i < 2; ++i) {
    sides[i] = Summarise(line.operands[i]);
    if (sides[i].ok()) continue;
    if (json) Print("%s", ProblemJson(line.operands[i], sides[i].status()));
    return ReportFailure("ckpt inspect", sides[i].status());
  }
  const OptionsDiff diff = CompareOptions(*sides[0], *sides[1]);
  Print("%s", json ? OptionsDiffJson(diff) : OptionsDiffText(diff));
  return diff.equal() ? kExitDone : kExitFailed;
}

}  // namespace

// The page is written before anything is printed, so that its error is the only output. A checkpoint with a problem,
// such as a missing file, is still shown, and the exit status is 1.
int RunInspect(const CommandLine& line) {
  if (absl::GetFlag(FLAGS_diff_options)) return RunDiffOptions(line);
  const absl::StatusOr<ListedTensors> tensors = TensorsFromFlags();
  if (!tensors.ok()) return ReportUsage("ckpt inspect", tensors.status());
  const std::string page = absl::GetFlag(FLAGS_html);
  absl::StatusOr<CheckpointSummary> summary = SummariseFor(page, line.operands[0]);
  if (!summary.ok()) {
    if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(line.operands[0], summary.status()));
    return ReportFailure("ckpt inspect", summary.status());
  }
  if (const absl::Status memory = CheckMaxMemory(line, page, *summary); !memory.ok()) {
    return ReportUsage("ckpt inspect", memory);
  }
  if (!page.empty()) {
    const absl::Status written = WritePage(page, *summary);
    if (!written.ok()) {
      if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(summary->path, written));
      return ReportFailure("ckpt inspect", written);
    }
  }
  const TextSink print = [](const std::string& piece) { Print("%s", piece); };
  if (absl::GetFlag(FLAGS_json)) {
    SummaryJson(*summary, *tensors, print);
  } else {
    SummaryText(*summary, *tensors, print);
  }
  if (summary->problem.empty()) return kExitDone;
  return ReportFailure("ckpt inspect", absl::DataLossError(absl::StrCat(summary->path, ": ", summary->problem)));
}

}  // namespace fsdp
