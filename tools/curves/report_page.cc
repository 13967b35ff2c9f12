// SPDX-License-Identifier: Apache-2.0
//
//   Headline, Tiles   the runs; for a single run its totals
//   Notes             what the page leaves out or summarises, run by run
//   Table             a row for each run
//   Charts            a card for each curve
//   data, script      the points as JSON; values at the pointer
#include "fsdp/tools/curves/report_page.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "fsdp/tools/curves/line_chart.h"
#include "fsdp/tools/curves/report_data.h"
#include "fsdp/tools/curves/report_script.h"
#include "fsdp/tools/curves/report_style.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {
namespace {

// The width of a drawing in its own row; small ones have half of it, without the gap.
constexpr int kWide = 1240;

struct Card {
  const char* title;
  const char* what;
  ChartOptions options;
};

// In the order of Curve.
const std::vector<Card>& Cards() {
  static const auto& cards = *new std::vector<Card>{
      {"Loss",
       "mean over the batch, nats per token",
       // Not from zero: the last improvements of a loss would be invisible.
       {.curve = Curve::kLoss, .may_be_log = true, .width = kWide, .height = 320}},
      {"Gradient norm", "before clipping", {.curve = Curve::kGradNorm, .may_be_log = true}},
      {"Learning rate", "", {.curve = Curve::kLr, .from_zero = true}},
      {"Tokens per second", "of all ranks", {.curve = Curve::kTokensPerSecond, .from_zero = true}},
      {"Peak memory",
       "of the device, largest of the ranks",
       {.curve = Curve::kPeakBytes, .unit = ValueUnit::kBytes, .from_zero = true}},
      {"Hidden communication",
       "share of rank 0's time in collectives that computation covers",
       {.curve = Curve::kHiddenShare, .unit = ValueUnit::kShare, .from_zero = true}},
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

std::string RunRow(const RunCurves& run, size_t index) {
  const auto cell = [](const std::string& text) { return absl::StrCat("<td class=\"number\">", text, "</td>"); };
  const int64_t nonfinite = NonFiniteValues(run);
  return absl::StrCat(
      "<tr><td class=\"run\"><svg class=\"swatch\" viewBox=\"0 0 10 10\"><rect class=\"", RunClass(index),
      "\" width=\"10\" height=\"10\"/></svg>", Html(run.path), "</td>",
      cell(run.last ? Count(run.last->step + 1) : "0"), cell(run.last ? LossText(run.last->loss) : "–"),
      cell(BestLoss(run)), cell(run.total(Curve::kLoss).finite > 0 ? Count(run.best_step) : "–"),
      cell(TokensPerSecond(run)), cell(TotalText(run, Curve::kPeakBytes, &CurveValues::max, ValueUnit::kBytes)),
      cell(TotalText(run, Curve::kHiddenShare, &CurveValues::mean, ValueUnit::kShare)), cell(TimeText(run)),
      cell(Count(run.saves)), cell(Count(run.restarts())),
      nonfinite > 0 ? absl::StrCat("<td class=\"number bad\">", Count(nonfinite), "</td>") : cell("–"), "</tr>\n");
}

std::string Table(const std::vector<RunCurves>& runs) {
  std::string html = Opening(runs.size() == 1 ? "Run" : "Runs",
                             "Tokens per second: all tokens by the time of all steps, without saves. Hidden: mean over "
                             "the steps. For a step that was trained twice, both times count.");
  absl::StrAppend(&html, "<div class=\"scroll\"><table><tr><th>run</th>");
  for (const char* column : {"steps", "final loss", "best loss", "at step", "tokens/s", "peak memory", "hidden", "time",
                             "checkpoints", "restarts", "not finite"}) {
    absl::StrAppend(&html, "<th class=\"number\">", column, "</th>");
  }
  html += "</tr>\n";
  for (size_t i = 0; i < runs.size(); ++i) absl::StrAppend(&html, RunRow(runs[i], i));
  return html + "</table></div></section>\n";
}

// "a.jsonl (FACT), b.jsonl (FACT)", of the runs that are `chosen`; only the fact if there is a single run.
std::string Names(const std::vector<RunCurves>& runs, const std::function<bool(const RunCurves&)>& chosen,
                  const std::function<std::string(const RunCurves&)>& fact = nullptr) {
  std::string names;
  for (const RunCurves& run : runs) {
    if (!chosen(run)) continue;
    const std::string name = Html(run.path);
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
    absl::StrAppend(&html, "<p>", runs.size() > 1 ? absl::StrCat(Html(run.path), ": ") : "", what, "</p>\n");
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
  const std::string unmeasured =
      Names(runs, [](const RunCurves& run) { return run.lines > 0 && run.total(Curve::kHiddenShare).finite == 0; });
  if (!unmeasured.empty()) {
    absl::StrAppend(&html, "<p>The hidden share of communication was not measured", runs.size() > 1 ? ": " : "",
                    runs.size() > 1 ? unmeasured : "", " (train_gpt measures it with --tensorboard).</p>\n");
  }
  return html.empty() ? "" : absl::StrCat("<section class=\"notes\">", html, "</section>\n");
}

// The meaning of the marks that occur.
std::string Legend(const std::vector<RunCurves>& runs) {
  std::string html = "<div class=\"legend\" style=\"margin-top:18px\">";
  if (runs.size() > 1) {
    for (size_t i = 0; i < runs.size(); ++i) {
      absl::StrAppend(&html, LegendEntry(RunClass(i).c_str(), Html(runs[i].path)));
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
  mark(any([](const RunCurves& run) { return run.saves > 0; }), "save", "M11 3l4 7h-8z", "checkpoint");
  mark(restarts, "restart\" stroke-dasharray=\"2 2", "M11 0v12", "restart");
  mark(restarts, "lost", "M1 6h20", "pale: steps that were trained again");
  mark(any([](const RunCurves& run) { return NonFiniteValues(run) > 0; }), "nonfinite", "M8 3l6 6m0 -6l-6 6",
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
    if (card.options.width == kWide || charts.back().svg.empty()) continue;
    ++small;
    last = charts.size() - 1;
  }
  // An odd one would leave half of a row empty.
  if (small % 2 == 0) return charts;
  ChartOptions options = Cards()[last].options;
  options.width = kWide;
  charts[last] = DrawLineChart(runs, options);
  return charts;
}

std::string Charts(const std::vector<LineChart>& charts) {
  std::string html = "<div class=\"charts\">\n";
  for (size_t i = 0; i < charts.size(); ++i) {
    const Card& card = Cards()[i];
    // No run has a value of it.
    if (charts[i].svg.empty()) continue;
    std::string what = card.what;
    if (charts[i].is_log) absl::StrAppend(&what, what.empty() ? "" : ", ", "logarithmic");
    absl::StrAppend(&html, "<section class=\"", charts[i].x1 > kWide / 2 ? "wide" : "", "\" data-curve=\"",
                    CurveName(card.options.curve), "\"><h2>", card.title, "</h2><small>", what,
                    "</small><span class=\"readout\"></span>", charts[i].svg, "</section>\n");
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
  return absl::StrCat("<h1>", Html(run.path), "</h1><p>Training run: ", what, "</p>\n");
}

}  // namespace

// The sum over all runs stays bounded, but a run gets enough points for a curve.
int64_t PointsOfRun(size_t runs) {
  return std::max<int64_t>(100, 1'000 / static_cast<int64_t>(std::max<size_t>(1, runs)));
}

// The content security policy is a second guard: the page has no reference to another place anyway.
std::string ReportPage(const std::vector<RunCurves>& runs) {
  const std::vector<LineChart> charts = DrawCharts(runs);
  const std::string title = runs.size() == 1 ? runs[0].path : absl::StrCat(runs.size(), " training runs");
  std::string html = PageHead(title, kReportStyle,
                              "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                              "'unsafe-inline'; script-src 'unsafe-inline'\">");
  absl::StrAppend(&html, Headline(runs), runs.size() == 1 ? Tiles(runs[0]) : Table(runs), Notes(runs), Legend(runs),
                  Charts(charts));
  absl::StrAppend(&html, "<script type=\"application/json\" id=\"data\">", ReportData(runs, charts), "</script>\n");
  absl::StrAppend(&html, "<script>", kReportScript, "</script>\n");
  return absl::StrCat(html, PageFoot("Made by report from train_gpt --metrics. Point at a chart to see the values of a "
                                     "step; the points are in the page as JSON."));
}

}  // namespace fsdp
