// SPDX-License-Identifier: Apache-2.0
//
//   Headline, Tiles   the runs; for a single run its totals
//   Table             a row for each run
//   Notes             what the page leaves out or summarises, run by run
//   Charts            a card for each curve
//   Unmeasured        runs without a measure of the hidden communication
//   data, scripts     the points as JSON; smoothing, values at the pointer, the order of the table
#include "fsdp/tools/curves/report_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "fsdp/tools/curves/line_chart.h"
#include "fsdp/tools/curves/report_data.h"
#include "fsdp/tools/curves/report_script.h"
#include "fsdp/tools/curves/report_style.h"
#include "fsdp/tools/page/html.h"
#include "fsdp/tools/page/table_script.h"

namespace fsdp {
namespace {

struct Card {
  const char* title;
  const char* what;
  ChartOptions options;
};

// In the order of Curve.
const std::vector<Card>& Cards() {
  static const auto& cards = *new std::vector<Card>{
      {"Loss",
       "mean over the batch",
       // Not from zero: the last improvements of a loss would be invisible.
       {.curve = Curve::kLoss, .may_be_log = true, .axis_title = "nats per token", .is_large = true}},
      {"Gradient norm",
       "before clipping",
       {.curve = Curve::kGradNorm, .may_be_log = true, .axis_title = "norm of all gradients"}},
      {"Learning rate", "", {.curve = Curve::kLr, .from_zero = true, .axis_title = "learning rate"}},
      {"Speed",
       "of all ranks",
       {.curve = Curve::kTokensPerSecond, .from_zero = true, .axis_title = "tokens per second"}},
      {"Peak memory",
       "largest of the ranks",
       {.curve = Curve::kPeakBytes, .unit = ValueUnit::kBytes, .from_zero = true, .axis_title = "bytes of the device"}},
      {"Hidden communication",
       "covered by computation",
       {.curve = Curve::kHiddenShare,
        .unit = ValueUnit::kShare,
        .from_zero = true,
        .axis_title = "share of rank 0's time in collectives"}},
  };
  return cards;
}

std::string Number(double value, ValueUnit unit = ValueUnit::kNumber) { return ValueText(value, unit); }

std::string LossText(double loss) {
  return std::isfinite(loss) ? absl::StrFormat("%.4f", loss) : "<span class=\"bad\">not finite</span>";
}

// A total of `curve` as text; a dash if it has no value.
std::string TotalText(const RunCurves& run, Curve curve, double CurveValues::*which, ValueUnit unit) {
  const CurveValues& total = run.total(curve);
  return total.finite > 0 ? Number(total.*which, unit) : "–";
}

std::string BestLoss(const RunCurves& run) {
  return run.total(Curve::kLoss).finite > 0 ? absl::StrFormat("%.4f", run.total(Curve::kLoss).min) : "–";
}

// The mean over time, not over steps: all tokens divided by all seconds.
std::string TokensPerSecond(const RunCurves& run) { return run.seconds > 0 ? Number(run.tokens / run.seconds) : "–"; }

std::string TimeText(const RunCurves& run) {
  // Metrics may come from any program: a Duration must not overflow.
  if (!(run.seconds > 0) || run.seconds > 1e12) return "–";
  const absl::Duration time = absl::Seconds(run.seconds);
  return absl::FormatDuration(time < absl::Minutes(1) ? absl::Trunc(time, absl::Milliseconds(100))
                                                      : absl::Trunc(time, absl::Seconds(1)));
}

int64_t NonFiniteValues(const RunCurves& run) {
  int64_t count = 0;
  for (const CurveValues& total : run.totals) count += total.nonfinite;
  return count;
}

std::string Tiles(const RunCurves& run) {
  const int64_t nonfinite = NonFiniteValues(run);
  return absl::StrCat(
      "<div class=\"tiles\">",
      Tile(run.last ? Count(run.last->step + 1) : "0", absl::StrCat("steps, in ", TimeText(run))),
      Tile(run.last ? LossText(run.last->loss) : "–", "final loss"),
      Tile(BestLoss(run), run.total(Curve::kLoss).finite > 0 ? absl::StrCat("best loss, at step ", Count(run.best_step))
                                                             : "best loss"),
      Tile(TokensPerSecond(run), "tokens per second, mean"),
      Tile(TotalText(run, Curve::kPeakBytes, &CurveValues::max, ValueUnit::kBytes), "peak memory"),
      Tile(absl::StrCat(run.saves, " / ", run.restarts()), "checkpoints / restarts"),
      Tile(nonfinite > 0 ? Count(nonfinite) : "none", "values not finite", nonfinite > 0 ? "bad" : "good"), "</div>\n");
}

std::vector<TableColumn> RunColumns() {
  std::vector<TableColumn> columns = {{"run"}};
  for (const char* column : {"steps", "final loss", "best loss", "at step", "tokens/s", "peak memory", "hidden", "time",
                             "checkpoints", "restarts", "not finite"}) {
    columns.push_back({column, true});
  }
  return columns;
}

std::string RunRow(const RunCurves& run, size_t index) {
  const auto count = [](int64_t number) { return NumberCell(Count(number), static_cast<double>(number)); };
  const auto total = [&](Curve curve, double CurveValues::*which, const std::string& text) {
    const CurveValues& of = run.total(curve);
    return NumberCell(text, of.finite > 0 ? std::optional<double>(of.*which) : std::nullopt);
  };
  const bool has_loss = run.total(Curve::kLoss).finite > 0;
  const int64_t nonfinite = NonFiniteValues(run);
  return absl::StrCat(
      "<tr><td class=\"name\" title=\"", Html(run.path),
      "\"><svg class=\"swatch\" viewBox=\"0 0 10 10\"><rect class=\"", RunClass(index),
      "\" width=\"10\" height=\"10\"/></svg>", Name(run.name), "</td>", run.last ? count(run.last->step + 1) : count(0),
      run.last ? NumberCell(LossText(run.last->loss), run.last->loss) : NumberCell("–", std::nullopt),
      total(Curve::kLoss, &CurveValues::min, BestLoss(run)),
      has_loss ? count(run.best_step) : NumberCell("–", std::nullopt),
      NumberCell(TokensPerSecond(run),
                 run.seconds > 0 ? std::optional<double>(run.tokens / run.seconds) : std::nullopt),
      total(Curve::kPeakBytes, &CurveValues::max,
            TotalText(run, Curve::kPeakBytes, &CurveValues::max, ValueUnit::kBytes)),
      total(Curve::kHiddenShare, &CurveValues::mean,
            TotalText(run, Curve::kHiddenShare, &CurveValues::mean, ValueUnit::kShare)),
      NumberCell(TimeText(run), run.seconds), count(run.saves), count(run.restarts()),
      NumberCell(nonfinite > 0 ? Count(nonfinite) : "–", static_cast<double>(nonfinite), nonfinite > 0 ? "bad" : ""),
      "</tr>\n");
}

std::string Table(const std::vector<RunCurves>& runs) {
  std::string html = absl::StrCat(Opening("Runs",
                                          "Tokens per second: all tokens by the time of all steps, without saves. "
                                          "Hidden: mean over the steps. For a step that was trained twice, both "
                                          "times count."),
                                  DataTable("runs", RunColumns()), "<tbody>");
  for (size_t i = 0; i < runs.size(); ++i) absl::StrAppend(&html, RunRow(runs[i], i));
  return html + "</tbody></table></div></section>\n";
}

// "a.jsonl (FACT), b.jsonl (FACT)", of the runs that are `chosen`; only the fact if there is a single run.
std::string Names(const std::vector<RunCurves>& runs, const std::function<bool(const RunCurves&)>& chosen,
                  const std::function<std::string(const RunCurves&)>& fact = nullptr) {
  std::string names;
  for (const RunCurves& run : runs) {
    if (!chosen(run)) continue;
    const std::string name = Name(run.name);
    const std::string what = fact ? fact(run) : "";
    absl::StrAppend(&names, names.empty() ? "" : ", ", runs.size() == 1 && fact ? what : name,
                    runs.size() > 1 && fact ? absl::StrCat(" (", what, ")") : "");
  }
  return names;
}

// Facts about a run's file that a reader must know; may be empty.
std::string Notes(const std::vector<RunCurves>& runs) {
  std::string html;
  const auto say = [&](const RunCurves& run, const std::string& what) {
    absl::StrAppend(&html, "<p>", runs.size() > 1 ? absl::StrCat(Name(run.name), ": ") : "", what, "</p>\n");
  };
  for (const RunCurves& run : runs) {
    if (run.lines == 0) say(run, "no step is in the file yet.");
    if (run.unfinished_bytes > 0) {
      say(run, absl::StrCat("the last line is unfinished (", Count(run.unfinished_bytes),
                            " bytes): the run was killed, or is writing it. It is left out."));
    }
    // Marks are bounded, but the reader must know that there are more.
    if (run.saves > static_cast<int64_t>(run.save_marks.size())) {
      say(run, absl::StrCat("of ", Count(run.saves), " checkpoints ", Count(run.save_marks.size()), " are marked."));
    }
  }
  const std::string thinned = Names(
      runs, [](const RunCurves& run) { return run.stride > 1; },
      [](const RunCurves& run) { return absl::StrCat("up to ", Count(run.stride), " of ", Count(run.lines)); });
  if (!thinned.empty()) {
    absl::StrAppend(&html,
                    "<p>Each point shows several lines, their mean by the line and their smallest and largest "
                    "value by the band: ",
                    thinned, ".</p>\n");
  }
  return html.empty() ? "" : absl::StrCat("<section class=\"notes\">", html, "</section>\n");
}

// A line below the charts, of which one is missing; empty if none is.
std::string Unmeasured(const std::vector<RunCurves>& runs) {
  const std::string unmeasured =
      Names(runs, [](const RunCurves& run) { return run.lines > 0 && run.total(Curve::kHiddenShare).finite == 0; });
  if (unmeasured.empty()) return "";
  return absl::StrCat("<p class=\"below\">The hidden share of communication was not measured",
                      runs.size() > 1 ? ": " : "", runs.size() > 1 ? unmeasured : "",
                      " (train_gpt measures it with --tensorboard).</p>\n");
}

// The meaning of the marks that occur.
std::string Legend(const std::vector<RunCurves>& runs) {
  std::string html = "<div class=\"legend marks\">";
  if (runs.size() > 1) {
    for (size_t i = 0; i < runs.size(); ++i) {
      absl::StrAppend(&html, LegendEntry(RunClass(i).c_str(), Name(runs[i].name)));
    }
  }
  const auto mark = [&](bool is_there, const char* css, const char* path, const char* what) {
    if (!is_there) return;
    absl::StrAppend(&html, "<span><svg class=\"mark\" viewBox=\"0 0 22 12\"><path class=\"", css, "\" d=\"", path,
                    "\"/></svg>", what, "</span>");
  };
  const auto any = [&](const auto& has) { return std::any_of(runs.begin(), runs.end(), has); };
  // The legend has only the marks that occur, so a plain run has a short one.
  const bool restarts = any([](const RunCurves& run) { return run.restarts() > 0; });
  mark(any([](const RunCurves& run) { return run.saves > 0; }), "save", "M11 2v8", "checkpoint");
  mark(restarts, "restart\" stroke-dasharray=\"2 2", "M11 0v12", "restart");
  mark(restarts, "lost", "M1 6h20", "pale: steps that were trained again");
  mark(any([](const RunCurves& run) { return NonFiniteValues(run) > 0; }), "nonfinite", "M11 6h0",
       "value that is not finite");
  mark(any([](const RunCurves& run) { return run.stride > 1; }), "band", "M0 2h22v8h-22z", "smallest to largest");
  return html + "</div>\n";
}

// In the order of Curve. Two small charts share a row; the last of an odd number has its own row.
std::vector<LineChart> DrawCharts(const std::vector<RunCurves>& runs) {
  std::vector<LineChart> charts;
  size_t small = 0;
  size_t last = 0;
  for (const Card& card : Cards()) {
    charts.push_back(DrawLineChart(runs, card.options));
    if (card.options.is_large || charts.back().svg.empty()) continue;
    ++small;
    last = charts.size() - 1;
  }
  // An odd one would leave half of a row empty.
  if (small % 2 == 0) return charts;
  ChartOptions options = Cards()[last].options;
  options.is_large = true;
  charts[last] = DrawLineChart(runs, options);
  return charts;
}

// "b is on a", of runs whose curves cover each other; may be empty.
std::string Coincident(const std::vector<RunCurves>& runs, const LineChart& chart) {
  std::string text;
  for (const auto& [first, second] : chart.coincident) {
    absl::StrAppend(&text, text.empty() ? "<p class=\"same\">" : ", ", Name(runs[second].name), " is on ",
                    Name(runs[first].name));
  }
  return text.empty() ? "" : text + "</p>";
}

std::string Charts(const std::vector<RunCurves>& runs, const std::vector<LineChart>& charts) {
  std::string html = "<div class=\"charts\">\n";
  for (size_t i = 0; i < charts.size(); ++i) {
    const Card& card = Cards()[i];
    // No run has a value of it.
    if (charts[i].svg.empty()) continue;
    const bool is_full = charts[i].svg.find("plot large") != std::string::npos;
    absl::StrAppend(&html, "<section class=\"", is_full ? "full" : "", "\" data-curve=\"",
                    CurveName(card.options.curve), "\"><h2>", card.title, "</h2><small>", card.what,
                    "</small><output class=\"readout\"></output>", charts[i].svg, Coincident(runs, charts[i]),
                    "</section>\n");
  }
  return html + "</div>\n";
}

std::string Headline(const std::vector<RunCurves>& runs) {
  if (runs.size() > 1) return absl::StrCat("<h1>", runs.size(), " training runs</h1>\n");
  const RunCurves& run = runs[0];
  std::string what = "no step yet";
  if (run.lines > 0) {
    what = absl::StrCat("steps ", Count(run.parts.front().first_step), " to ", Count(run.last->step), ", ",
                        Count(run.lines), " lines");
  }
  return absl::StrCat("<h1>", Name(run.name), "</h1><p>Training run: ", what, "<br>", Name(run.path), "</p>\n");
}

}  // namespace

// The sum over all runs stays bounded, but a run gets enough points for a curve.
int64_t PointsOfRun(size_t runs) {
  return std::max<int64_t>(100, 1'000 / static_cast<int64_t>(std::max<size_t>(1, runs)));
}

std::string ReportPage(const std::vector<RunCurves>& runs) {
  std::vector<PageScript> scripts = {kReportScript};
  if (runs.size() > 1) scripts.push_back(kTableScript);
  const std::vector<LineChart> charts = DrawCharts(runs);
  const std::string title = runs.size() == 1 ? runs[0].name : absl::StrCat(runs.size(), " training runs");
  std::string html = PageHead(title, absl::StrCat(kReportStyle, ColumnLabels("runs", RunColumns())), scripts);
  absl::StrAppend(&html, Headline(runs), runs.size() == 1 ? Tiles(runs[0]) : Table(runs), Notes(runs), Legend(runs),
                  Charts(runs, charts), Unmeasured(runs));
  absl::StrAppend(&html, "<script type=\"application/json\" id=\"data\">", ReportData(runs, charts), "</script>\n");
  return absl::StrCat(html, PageFoot("Made by report from train_gpt --metrics. Point at a chart to see the values of a "
                                     "step; the points are in the page as JSON.",
                                     scripts));
}

}  // namespace fsdp
