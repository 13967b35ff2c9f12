// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/commands/pages.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/source/value_statistics.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/output_file.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/ckpt_page.h"
#include "fsdp/tools/inspect/diff_page.h"
#include "fsdp/tools/inspect/run_facts.h"
#include "fsdp/tools/inspect/run_history.h"
#include "fsdp/tools/inspect/run_page.h"

namespace fsdp {
namespace {

// What the page of one checkpoint shows besides its summary.
struct PageContents {
  TensorStatistics statistics;
  RunFacts facts;
};

absl::StatusOr<PageContents> ReadContents(const std::string& page, const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(TensorSourceOptions source_options, SourceOptionsFromFlags());
  source_options.skip_links = true;  // the summary names them
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, OpenPath(path, source_options));
  InputPaths inputs;
  AddSource(*source, inputs);
  FSDP_RETURN_IF_ERROR(CheckOutput(page, inputs));
  Progress progress("inspect");
  StatisticsOptions options;
  options.progress = progress.callback();
  PageContents contents;
  FSDP_ASSIGN_OR_RETURN(contents.statistics, ReadStatistics(*source, options));
  contents.facts = ReadRunFacts(path, *source);
  return contents;
}

DiffSide SideOf(const ComparedSource& compared) { return {AbsolutePath(compared.path), KindOfSource(compared.source)}; }

}  // namespace

absl::Status WriteCheckpointPage(const std::string& page, CheckpointSummary& summary) {
  FSDP_ASSIGN_OR_RETURN(const PageContents contents, ReadContents(page, summary.path));
  for (const auto& [key, values] : contents.statistics) {
    if (values.unread > 0) summary.partly_read.push_back({key, values.numel, values.unread});
  }
  // After the reading: the manifest takes as much memory as the source.
  summary.FillManifest();
  return WriteOutputFile(CheckpointPage(summary, contents.statistics, contents.facts), page);
}

absl::Status WriteRunPage(const std::string& page, CheckpointSummary& summary) {
  const std::string root = summary.asked_for;
  RunHistory history;
  {
    Progress progress("inspect");
    RunHistoryOptions options;
    options.max_memory = absl::GetFlag(FLAGS_max_memory).bytes;
    options.progress = progress.callback();
    FSDP_ASSIGN_OR_RETURN(history, ReadRunHistory(root, options));
  }
  std::vector<std::string> skipped;
  const auto verified = std::find_if(history.steps.rbegin(), history.steps.rend(), [&](const RunStep& step) {
    if (!step.problem.empty()) skipped.push_back(absl::StrCat(step.name, " ", step.problem));
    return step.problem.empty();
  });
  // ReadRunHistory returns an error unless there is one.
  FSDP_ASSIGN_OR_RETURN(CheckpointSummary newest, Summarise(JoinPath(root, verified->name)));
  newest.asked_for = root;
  newest.format = summary.format;
  newest.is_verified = true;
  newest.skipped = std::move(skipped);
  summary = std::move(newest);
  return WriteOutputFile(RunPage(AbsolutePath(root), history), page);
}

std::string KindOfSource(const TensorSource& source) {
  if (!source.is_ours()) return std::string(source.format());
  return absl::StrCat(std::string(StateDictTypeName(source.contents().type)), ", ",
                      source.step() < 0 ? "an unknown step" : absl::StrCat("step ", source.step()), ", world size ",
                      source.world_size());
}

absl::Status WriteDiffPage(const std::string& page, const ComparedSource& a, const ComparedSource& b,
                           const DiffReport& report) {
  return WriteOutputFile(DiffPage(SideOf(a), SideOf(b), report), page);
}

}  // namespace fsdp
