// SPDX-License-Identifier: Apache-2.0
//
// ckpt inspect: the summary comes only from metadata, so it takes the same time for any size of model, and of a ROOT no
// step is verified. Only --html reads values, for its histograms.
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/value_statistics.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/output_file.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "fsdp/tools/inspect/ckpt_page.h"
#include "fsdp/tools/inspect/ckpt_summary.h"
#include "fsdp/tools/inspect/options_diff.h"

namespace fsdp {
namespace {

// The page, unless it is empty, must be neither an input nor inside a checkpoint. This is checked first, since with a
// page a step of a ROOT is verified.
absl::StatusOr<CheckpointSummary> SummariseFor(const std::string& page, const std::string& source) {
  if (!page.empty() && IsS3Url(source)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--html reads every value, and ", source, " is in an object store: ckpt pull it first"));
  }
  InputPaths inputs;
  AddCheckpoint(source, inputs);
  inputs.Add(absl::GetFlag(FLAGS_flat_layout));
  if (!page.empty()) FSDP_RETURN_IF_ERROR(CheckOutput(page, inputs));
  return Summarise(source, {.verify_root = !page.empty()});
}

// Reads every value. The page appears under its name complete or not at all, and replaces a file of that name. Adds the
// tensors that were not wholly read to the summary.
absl::Status WritePage(CheckpointSummary& summary, const std::string& path) {
  TensorStatistics statistics;
  {
    Progress progress("inspect");
    StatisticsOptions options;
    options.progress = progress.callback();
    FSDP_ASSIGN_OR_RETURN(TensorSourceOptions source_options, SourceOptionsFromFlags());
    source_options.skip_links = true;  // the summary names them
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, OpenTensorSource(summary.path, source_options));
    InputPaths inputs;
    AddSource(*source, inputs);
    FSDP_RETURN_IF_ERROR(CheckOutput(path, inputs));
    FSDP_ASSIGN_OR_RETURN(statistics, ReadStatistics(*source, options));
  }
  for (const auto& [key, values] : statistics) {
    if (values.unread > 0) summary.partly_read.push_back({key, values.numel, values.unread});
  }
  // After the reading: the manifest takes as much memory as the source.
  summary.FillManifest();
  return WriteOutputFile(CheckpointPage(summary, statistics), path);
}

absl::StatusOr<NameFilter> FilterOfTensors() {
  const std::string pattern = absl::GetFlag(FLAGS_tensors).text;
  NameFilter::Patterns patterns;
  if (!pattern.empty()) patterns.include.push_back(pattern);
  return NameFilter::Create(patterns);
}

// Both sides are opened before anything is printed.
int RunDiffOptions(const CommandLine& line) {
  if (absl::GetFlag(FLAGS_tensors).is_on || !absl::GetFlag(FLAGS_html).empty()) {
    return ReportUsageError(
        "ckpt inspect", absl::InvalidArgumentError("--diff_options: expected neither --tensors nor --html with it"));
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
  if (!absl::GetFlag(FLAGS_endpoint_url).empty() && !IsS3Url(line.operands[0])) {
    return ReportUsageError("ckpt inspect",
                            absl::InvalidArgumentError("--endpoint_url is for a PATH that is s3://BUCKET/PREFIX"));
  }
  if (absl::GetFlag(FLAGS_diff_options)) return RunDiffOptions(line);
  const absl::StatusOr<NameFilter> filter = FilterOfTensors();
  if (!filter.ok()) return ReportUsageError("ckpt inspect", filter.status());
  const std::string page = absl::GetFlag(FLAGS_html);
  absl::StatusOr<CheckpointSummary> summary = SummariseFor(page, line.operands[0]);
  if (!summary.ok()) {
    if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(line.operands[0], summary.status()));
    return ReportFailure("ckpt inspect", summary.status());
  }
  if (!page.empty()) {
    const absl::Status written = WritePage(*summary, page);
    if (!written.ok()) {
      if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(summary->path, written));
      return ReportFailure("ckpt inspect", written);
    }
  }
  const ListedTensors tensors = {.is_wanted = absl::GetFlag(FLAGS_tensors).is_on, .filter = *filter};
  const TextSink print = [](const std::string& piece) { Print("%s", piece); };
  if (absl::GetFlag(FLAGS_json)) {
    SummaryJson(*summary, tensors, print);
  } else {
    SummaryText(*summary, tensors, print);
  }
  if (summary->problem.empty()) return kExitDone;
  return ReportFailure("ckpt inspect", absl::DataLossError(absl::StrCat(summary->path, ": ", summary->problem)));
}

}  // namespace fsdp
