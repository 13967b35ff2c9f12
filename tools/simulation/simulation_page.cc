// SPDX-License-Identifier: Apache-2.0
//
//   Misfits   first: jobs that do not fit, and what would make them fit
//   Charts    speed, time and memory, a row for each number of ranks
//   Table     all numbers
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/tools/page/bar_chart.h"
#include "fsdp/tools/page/html.h"
#include "fsdp/tools/page/table_script.h"
#include "fsdp/tools/simulation/simulation_report.h"

namespace fsdp {
namespace {

constexpr double kGibibyte = 1 << 30;
constexpr int kBarHeight = 18;

std::string GiB(int64_t bytes) { return absl::StrFormat("%.3g GiB", static_cast<double>(bytes) / kGibibyte); }

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

std::string Rounded(double number) { return Count(static_cast<int64_t>(number + 0.5)); }

double SpeedOfRank(const SimulatedRun& run) { return run.step.tokens_per_second / run.job.ranks; }

std::string Headline(const std::string& model, const std::vector<SimulatedRun>& runs) {
  const SimulatedRun& run = runs.front();
  const SimulatedJob& job = run.job;
  const std::string strategy =
      FirstFits(runs).empty() ? absl::StrCat(std::string(ShardingStrategyName(job.plan.strategy)), ", ") : "";
  return absl::StrCat("<h1>", Name(model), " on ", Html(job.device.name), "</h1><p>", Count(run.step.parameters),
                      " parameters, ", strategy, job.work.batch_size, " × ", Count(job.work.seq_len), " tokens a rank",
                      job.micro_steps > 1 ? absl::StrCat(" × ", job.micro_steps) : "", ", activation checkpointing ",
                      std::string(CheckpointingName(job.work.checkpointing)),
                      ".<br>An estimate, not a measurement: docs/simulate.md says how accurate it is.</p>\n");
}

std::string Tiles(const SimulatedRun& run) {
  const SimulatedStep& step = run.step;
  const bool fits = Fits(run.job, step);
  return absl::StrCat("<div class=\"tiles\">", Tile(Rounded(step.tokens_per_second), "tokens a second"),
                      Tile(Rounded(SpeedOfRank(run)), "of each rank"),
                      Tile(Percent(step.model_flops_utilization), "MFU"),
                      Tile(Percent(step.exposed_communication), "of the step waits for communication"),
                      Tile(GiB(step.memory.peak()), "memory of a rank", fits ? "" : "bad"), "</div>\n");
}

// Of several strategies, which fit: the changes of each job would be a page.
std::string StrategiesThatFit(const std::vector<FirstFit>& fits) {
  std::string html = absl::StrCat(
      Opening("Which strategy fits", "Each with its first number of ranks that fits the device, the fastest first."),
      "<ul class=\"found\">");
  for (const auto& [strategy, run] : fits) {
    absl::StrAppend(&html, "<li>", Name(std::string(ShardingStrategyName(strategy))), ": ",
                    run == nullptr ? "<b class=\"bad\">with none of these</b>"
                                   : absl::StrCat(RanksText(run->job), ", ", GiB(run->step.memory.peak()), ", ",
                                                  Rounded(SpeedOfRank(*run)), " tokens a second of each"),
                    "</li>\n");
  }
  return html + "</ul></section>\n";
}

std::string Misfits(const std::vector<SimulatedRun>& runs) {
  const std::vector<FirstFit> fits = FirstFits(runs);
  if (!fits.empty() && fits.front().run != nullptr) return StrategiesThatFit(fits);
  std::string html;
  for (const SimulatedRun& run : runs) {
    if (Fits(run.job, run.step)) continue;
    absl::StrAppend(&html, "<h3 class=\"bad\">", RunText(run, runs), ": ", GiB(run.step.memory.peak()), " of ",
                    GiB(run.job.device.memory_bytes), "</h3><ul class=\"found\">");
    for (const FittingJob& fitting : run.fitting) {
      absl::StrAppend(&html, "<li>fits with ", Name(fitting.flags), ": ", GiB(fitting.peak_bytes), ", ",
                      Rounded(fitting.tokens_per_second), " tokens a second</li>\n");
    }
    if (run.fitting.empty()) {
      absl::StrAppend(&html,
                      "<li>nothing that was tried is enough: full activation checkpointing, a batch of 1, "
                      "full_shard, up to ",
                      Count(kMaxFittingRanks), " ranks</li>\n");
    }
    html += "</ul>\n";
  }
  if (html.empty()) return "";
  return absl::StrCat(Opening("Does not fit", "Each of these changes is enough by itself; all are simulated."), html,
                      "</section>\n");
}

std::string Speed(const std::vector<SimulatedRun>& runs) {
  double best = 0;
  for (const SimulatedRun& run : runs) best = std::max(best, SpeedOfRank(run));
  std::string html = Opening(
      "Speed of a rank", "Tokens a second of each rank; bars of equal length scale perfectly. The number is of all.");
  for (const SimulatedRun& run : runs) {
    const BarPart part = {SpeedOfRank(run), "model", absl::StrFormat("%.0f tokens a second", SpeedOfRank(run))};
    absl::StrAppend(&html, ChartRow(RunText(run, runs), BarSvg({part}, best, kBarHeight),
                                    absl::StrCat(Rounded(run.step.tokens_per_second), " /s")));
  }
  return html + "</section>\n";
}

std::string Time(const std::vector<SimulatedRun>& runs) {
  double longest = 0;
  for (const SimulatedRun& run : runs) longest = std::max(longest, run.step.timeline.seconds);
  std::string html =
      absl::StrCat(Opening("Time of a step", "Communication that computation covers costs no time and is not drawn."),
                   "<div class=\"legend\">", LegendEntry("model", "computing"),
                   LegendEntry("optim", "waiting for communication"), "</div>");
  for (const SimulatedRun& run : runs) {
    const StepTimeline& timeline = run.step.timeline;
    const double computing = timeline.seconds - timeline.exposed;
    const std::vector<BarPart> parts = {
        {computing, "model", absl::StrFormat("computing: %.3g s", computing)},
        {timeline.exposed, "optim", absl::StrFormat("waiting: %.3g s", timeline.exposed)}};
    absl::StrAppend(&html, ChartRow(RunText(run, runs), BarSvg(parts, longest, kBarHeight),
                                    absl::StrFormat("%.3g s", timeline.seconds)));
  }
  return html + "</section>\n";
}

// The length of all bars is the device's memory, or the largest need.
std::string Memory(const std::vector<SimulatedRun>& runs) {
  const int64_t device = runs.front().job.device.memory_bytes;
  int64_t most = device;
  for (const SimulatedRun& run : runs) most = std::max(most, run.step.memory.peak());
  std::string html = absl::StrCat(
      Opening("Memory of a rank",
              device == 0 ? "The device's memory is not known." : absl::StrCat("The device has ", GiB(device), ".")),
      "<div class=\"legend\">", LegendEntry("model", "parameters and gradients"), LegendEntry("optim", "optimizer"),
      LegendEntry("second", "activations"), device == 0 ? "" : LegendEntry("extra", "free"), "</div>");
  for (const SimulatedRun& run : runs) {
    const StepMemory& memory = run.step.memory;
    const auto part = [](int64_t bytes, const char* css, const char* what) {
      return BarPart{static_cast<double>(bytes), css, absl::StrCat(what, ": ", GiB(bytes))};
    };
    std::vector<BarPart> parts = {part(memory.fsdp, "model", "parameters and gradients"),
                                  part(memory.optimizer, "optim", "optimizer"),
                                  part(memory.activations, "second", "activations")};
    if (device > memory.peak()) parts.push_back(part(device - memory.peak(), "extra", "free"));
    const std::string number = GiB(memory.peak());
    absl::StrAppend(&html,
                    ChartRow(RunText(run, runs), BarSvg(parts, static_cast<double>(most), kBarHeight),
                             Fits(run.job, run.step) ? number : absl::StrCat("<b class=\"bad\">", number, "</b>")));
  }
  return html + "</section>\n";
}

std::vector<TableColumn> Columns() {
  std::vector<TableColumn> columns = {{"ranks"}};
  for (const char* title : {"tokens/s", "a rank", "scaling", "MFU", "exposed", "step", "memory", "FSDP", "optimizer",
                            "activations", "save", "load"}) {
    columns.push_back({title, true});
  }
  return columns;
}

std::string Row(const SimulatedRun& run, const std::vector<SimulatedRun>& runs) {
  const SimulatedStep& step = run.step;
  const auto seconds = [](double value) { return NumberCell(absl::StrFormat("%.3g s", value), value); };
  const auto share = [](double value) { return NumberCell(Percent(value), value); };
  const auto bytes = [](int64_t value, const char* css = "") {
    return NumberCell(GiB(value), static_cast<double>(value), css);
  };
  const bool fits = Fits(run.job, step);
  return absl::StrCat("<tr", fits ? "" : " class=\"bad\"", "><td class=\"name\">", RunText(run, runs), "</td>",
                      NumberCell(Rounded(step.tokens_per_second), step.tokens_per_second),
                      NumberCell(Rounded(SpeedOfRank(run)), SpeedOfRank(run)), share(Scaling(run, runs)),
                      share(step.model_flops_utilization), share(step.exposed_communication),
                      seconds(step.timeline.seconds), bytes(step.memory.peak(), fits ? "" : "bad"),
                      bytes(step.memory.fsdp), bytes(step.memory.optimizer), bytes(step.memory.activations),
                      seconds(step.save_seconds), seconds(step.load_seconds), "</tr>\n");
}

}  // namespace

std::string SimulationPage(const std::string& model, const std::vector<SimulatedRun>& runs) {
  const std::vector<PageScript> scripts = {kTableScript};
  std::string html =
      PageHead(absl::StrCat(model, " on ", runs.front().job.device.name), ColumnLabels("jobs", Columns()), scripts);
  absl::StrAppend(&html, Headline(model, runs), Misfits(runs), runs.size() == 1 ? Tiles(runs.front()) : "", Speed(runs),
                  Time(runs), Memory(runs));
  absl::StrAppend(&html, Opening("All numbers", "Scaling: the speed of a rank, over the first row's of its strategy."),
                  DataTable("jobs", Columns()), "<tbody>");
  for (const SimulatedRun& run : runs) html += Row(run, runs);
  return absl::StrCat(html, "</tbody></table></div></section>\n", PageFoot("Made by simulate.", scripts));
}

}  // namespace fsdp
