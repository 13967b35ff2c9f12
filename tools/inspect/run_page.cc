// SPDX-License-Identifier: Apache-2.0
//
// A map has a strip for the whole model and for each layer, and in it a cell for each step. Colours are classes: s0 to
// s7 for a size, from small to large, and d0 to d6 for a ratio, from smaller to larger. All cells of one colour in a
// strip are one path, which keeps the page small.
#include "fsdp/tools/inspect/run_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/tools/inspect/run_facts.h"
#include "fsdp/tools/inspect/run_script.h"
#include "fsdp/tools/inspect/run_trouble.h"
#include "fsdp/tools/page/bar_chart.h"
#include "fsdp/tools/page/html.h"
#include "fsdp/tools/page/table_script.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kRunStyle[] = R"css(
.strip path { shape-rendering: crispEdges; } .strip { background: var(--page); }
.s0 { fill: var(--model); fill-opacity: .08; } .s1 { fill: var(--model); fill-opacity: .2; }
.s2 { fill: var(--model); fill-opacity: .34; } .s3 { fill: var(--model); fill-opacity: .48; }
.s4 { fill: var(--model); fill-opacity: .62; } .s5 { fill: var(--model); fill-opacity: .76; }
.s6 { fill: var(--model); fill-opacity: .9; } .s7 { fill: var(--second); }
.d0 { fill: var(--optim); } .d1 { fill: var(--optim); fill-opacity: .6; } .d2 { fill: var(--optim); fill-opacity: .25; }
.d3 { fill: var(--extra); fill-opacity: .16; } .d4 { fill: var(--model); fill-opacity: .25; }
.d5 { fill: var(--model); fill-opacity: .6; } .d6 { fill: var(--model); }
.no { fill: var(--bad); } .gone { fill: var(--extra); fill-opacity: .5; }
.readout { display: block; min-height: 21px; color: var(--ink); font-size: 12.5px; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
)css";

constexpr int kStripHeight = 15;
constexpr int kSizes = 8;
constexpr int kRatios = 7;

// Rows of the maps: the whole model, then the layers.
struct MapRow {
  std::string name;
  std::vector<std::optional<LayerAtStep>> cells;  // by step; nullopt: the step lacks it
};

std::vector<MapRow> RowsOf(const RunHistory& history) {
  std::vector<MapRow> rows(history.layers.size() + 1);
  rows[0].name = "the whole model";
  for (const RunStep& step : history.steps) {
    const bool is_read = !step.layers.empty();
    rows[0].cells.push_back(is_read ? std::optional<LayerAtStep>(step.model()) : std::nullopt);
    for (size_t i = 0; i < history.layers.size(); ++i) {
      rows[i + 1].name = history.layers[i];
      const bool is_there = is_read && (step.layers[i].numel > 0 || step.layers[i].nonfinite.any());
      rows[i + 1].cells.push_back(is_there ? std::optional<LayerAtStep>(step.layers[i]) : std::nullopt);
    }
  }
  return rows;
}

// The class of a cell, or "" for none.
using CellClass = std::function<std::string(const MapRow& row, size_t step)>;

std::string StripSvg(const RunHistory& history, const MapRow& row, const CellClass& class_of) {
  std::vector<std::pair<std::string, std::string>> paths;  // class, and its cells
  for (size_t i = 0; i < history.steps.size(); ++i) {
    std::string css = class_of(row, i);
    if (!history.steps[i].problem.empty()) css = "gone";
    if (row.cells[i] && row.cells[i]->nonfinite.any()) css = "no";
    if (css.empty()) continue;
    auto path = std::find_if(paths.begin(), paths.end(), [&](const auto& other) { return other.first == css; });
    if (path == paths.end()) path = paths.insert(path, {css, ""});
    absl::StrAppend(&path->second, "M", i, " 0h1v1h-1z");
  }
  std::string svg =
      absl::StrFormat("<svg class=\"strip\" viewBox=\"0 0 %d 1\" height=\"%d\" preserveAspectRatio=\"none\">",
                      history.steps.size(), kStripHeight);
  for (const auto& [css, cells] : paths) absl::StrAppend(&svg, "<path class=\"", css, "\" d=\"", cells, "\"/>");
  return svg + "</svg>";
}

// Numbers of some steps, the first and the last among them.
std::string StepAxisSvg(const RunHistory& history) {
  const size_t count = history.steps.size();
  const size_t labels = std::min<size_t>(count, 9);
  std::string svg = "<svg class=\"axis\" height=\"16\">";
  for (size_t i = 0; i < labels; ++i) {
    const size_t at = labels == 1 ? 0 : i * (count - 1) / (labels - 1);
    const bool is_wide_only = labels > 5 && i % 2 == 1;
    absl::StrAppendFormat(&svg, "<text%s x=\"%.2f%%\" y=\"11\">%d</text>", is_wide_only ? " class=\"wide\"" : "",
                          100 * (static_cast<double>(at) + 0.5) / static_cast<double>(count), history.steps[at].step);
  }
  return svg + "</svg>";
}

std::string MapSection(const RunHistory& history, const std::vector<MapRow>& rows, const std::string& title,
                       const std::string& note, const std::string& legend, const CellClass& class_of,
                       const std::function<std::string(const MapRow&)>& number) {
  std::string html = absl::StrCat("<section data-map><h2>", title, "</h2><p>", note, "</p><div class=\"legend\">",
                                  legend, LegendEntry("no", "NaN or infinity"), LegendEntry("gone", "not read"),
                                  "</div><output class=\"readout\"></output>\n");
  for (const MapRow& row : rows) {
    absl::StrAppend(&html, ChartRow(row.name, StripSvg(history, row, class_of), number(row)));
  }
  return absl::StrCat(html, ChartAxisRow(StepAxisSvg(history)), "</section>\n");
}

// The largest change of a row and its step; nullopt without a change.
std::optional<std::pair<double, int64_t>> LargestChange(const RunHistory& history, const MapRow& row) {
  std::optional<std::pair<double, int64_t>> largest;
  for (size_t i = 0; i < row.cells.size(); ++i) {
    const std::optional<double> change = row.cells[i] ? row.cells[i]->change() : std::nullopt;
    if (change && std::isfinite(*change) && (!largest || *change > largest->first)) {
      largest = {*change, history.steps[i].step};
    }
  }
  return largest;
}

// The scale is logarithmic and shared by all layers.
std::string ChangeSection(const RunHistory& history, const std::vector<MapRow>& rows) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  for (const MapRow& row : rows) {
    for (const auto& cell : row.cells) {
      const double change = cell ? cell->change().value_or(0) : 0;
      if (!(change > 0) || !std::isfinite(change)) continue;
      low = std::min(low, change);
      high = std::max(high, change);
    }
  }
  if (!(high > 0)) return "";
  low = std::max(low, high * 1e-6);
  const double span = std::max(std::log10(high / low), 0.3);
  const auto class_of = [&](const MapRow& row, size_t i) -> std::string {
    const std::optional<double> change = row.cells[i] ? row.cells[i]->change() : std::nullopt;
    if (!change) return "";
    const double share = *change > 0 ? std::log10(*change / low) / span : 0;
    return absl::StrCat("s", std::clamp(static_cast<int>(share * kSizes), 0, kSizes - 1));
  };
  const auto number = [&](const MapRow& row) {
    const auto largest = LargestChange(history, row);
    return largest ? absl::StrCat("≤ ", Short(largest->first)) : std::string("–");
  };
  const std::string legend =
      absl::StrCat(LegendEntry("s0", Short(low)), LegendEntry("s3", Short(low * std::pow(10, span / 2))),
                   LegendEntry("s7", Short(high)));
  return MapSection(history, rows, "Change from step to step",
                    "The norm of the difference to the step before, over the norm before; one column for each "
                    "checkpoint, colours logarithmic. The number is the largest.",
                    legend, class_of, number);
}

// Relative to each layer's first norm: layers have different sizes.
std::string NormSection(const RunHistory& history, const std::vector<MapRow>& rows) {
  const auto first_norm = [](const MapRow& row) {
    for (const auto& cell : row.cells) {
      if (cell && cell->norm() > 0 && std::isfinite(cell->norm())) return cell->norm();
    }
    return 0.0;
  };
  const auto class_of = [&](const MapRow& row, size_t i) -> std::string {
    if (!row.cells[i]) return "";
    const double first = first_norm(row);
    const double octaves = first > 0 ? std::log2(row.cells[i]->norm() / first) : 0;
    // Bounds of the classes: a tenth, a third, and twice as much.
    int at = kRatios / 2;
    for (const double bound : {0.1, 0.42, 1.0}) {
      if (octaves > bound) ++at;
      if (octaves < -bound) --at;
    }
    return absl::StrCat("d", at);
  };
  const auto number = [](const MapRow& row) {
    for (auto cell = row.cells.rbegin(); cell != row.cells.rend(); ++cell) {
      if (*cell) return Short((*cell)->norm());
    }
    return std::string("–");
  };
  const std::string legend =
      absl::StrCat(LegendEntry("d0", "less than half of its first"), LegendEntry("d3", "within 7 %"),
                   LegendEntry("d5", "a third more"), LegendEntry("d6", "more than twice"));
  return MapSection(history, rows, "Norms",
                    "The norm of the weights, compared with the first step. The number is the last.", legend, class_of,
                    number);
}

std::string FoundSection(const RunHistory& history) {
  const std::vector<std::string> found = FindTrouble(history);
  std::string html = Opening("Where did it go wrong?", "What a person would look at first.");
  if (found.empty()) {
    absl::StrAppend(&html, "<p class=\"good\">Nothing stands out: every value is finite, and no layer changed by ",
                    kJump, " times the median of its changes before.</p>\n");
  } else {
    html += "<ul class=\"found\">";
    for (const std::string& sentence : found) absl::StrAppend(&html, "<li>", EscapeHtml(sentence), "</li>\n");
    html += "</ul>\n";
  }
  return html + "</section>\n";
}

std::vector<TableColumn> StepColumns() {
  return {{"checkpoint"}, {"step", true},     {"world size", true},    {"norm", true}, {"change", true},
          {"NaN", true},  {"infinite", true}, {"changed most", false}, {"by", true}};
}

std::string StepRow(const RunHistory& history, const RunStep& step) {
  const std::string name = absl::StrCat("<td class=\"name\">", Name(step.name), "</td>",
                                        NumberCell(absl::StrCat(step.step), static_cast<double>(step.step)));
  if (!step.problem.empty()) {
    return absl::StrCat("<tr class=\"bad\">", name, "<td colspan=\"7\" class=\"name problem\">", "<bdi>",
                        EscapeHtml(step.problem), "</bdi>", "</td></tr>\n");
  }
  const LayerAtStep model = step.model();
  size_t most = 0;
  for (size_t i = 1; i < step.layers.size(); ++i) {
    if (step.layers[i].change().value_or(-1) > step.layers[most].change().value_or(-1)) most = i;
  }
  const std::optional<double> by = step.layers.empty() ? std::nullopt : step.layers[most].change();
  const auto count = [](int64_t number) {
    return NumberCell(Count(number), static_cast<double>(number), number > 0 ? "bad" : "");
  };
  return absl::StrCat("<tr", model.nonfinite.any() ? " class=\"bad\"" : "", ">", name,
                      NumberCell(absl::StrCat(step.world_size), step.world_size),
                      NumberCell(Short(model.norm()), model.norm()), NumberCell(Short(model.change()), model.change()),
                      count(model.nonfinite.nan), count(model.nonfinite.inf), "<td class=\"name\">",
                      by ? Name(history.layers[most]) : "–", "</td>", NumberCell(Short(by), by), "</tr>\n");
}

std::vector<TableColumn> LayerColumns() {
  return {{"layer"},         {"first norm", true},          {"last norm", true}, {"largest change", true},
          {"at step", true}, {"not finite from step", true}};
}

std::string LayerRowHtml(const RunHistory& history, const MapRow& row) {
  std::optional<double> first;
  std::optional<double> last;
  std::optional<int64_t> bad;
  for (size_t i = 0; i < row.cells.size(); ++i) {
    if (!row.cells[i]) continue;
    last = row.cells[i]->norm();
    if (!first) first = last;
    if (!bad && row.cells[i]->nonfinite.any()) bad = history.steps[i].step;
  }
  const auto largest = LargestChange(history, row);
  const auto step = [](const std::optional<int64_t>& at, const char* css) {
    return at ? NumberCell(absl::StrCat(*at), static_cast<double>(*at), css) : NumberCell("–", std::nullopt);
  };
  return absl::StrCat("<tr", bad ? " class=\"bad\"" : "", "><td class=\"name\">", Name(row.name), "</td>",
                      NumberCell(Short(first), first), NumberCell(Short(last), last),
                      largest ? NumberCell(Short(largest->first), largest->first) : NumberCell("–", std::nullopt),
                      step(largest ? std::optional<int64_t>(largest->second) : std::nullopt, ""), step(bad, "bad"),
                      "</tr>\n");
}

std::string Tables(const RunHistory& history, const std::vector<MapRow>& rows) {
  std::string html =
      absl::StrCat(Opening("Checkpoints", "Oldest first."), DataTable("steps", StepColumns()), "<tbody>");
  for (const RunStep& step : history.steps) html += StepRow(history, step);
  absl::StrAppend(&html, "</tbody></table></div></section>\n", Opening("Layers", "In the order of a model."),
                  DataTable("layers", LayerColumns()), "<tbody>");
  for (const MapRow& row : rows) html += LayerRowHtml(history, row);
  return html + "</tbody></table></div></section>\n";
}

// "<" is written as an escape, so that no name can end the enclosing element or open a comment in it.
std::string Data(const RunHistory& history, const std::vector<MapRow>& rows) {
  Json data = {{"steps", Json::array()}, {"unread", Json::array()}, {"rows", Json::array()}};
  for (const RunStep& step : history.steps) {
    data["steps"].push_back(step.step);
    data["unread"].push_back(!step.problem.empty());
  }
  for (const MapRow& row : rows) {
    Json json = {{"name", Printable(row.name)}};
    for (const char* member : {"norm", "change", "nonfinite"}) json[member] = Json::array();
    for (const auto& cell : row.cells) {
      const std::optional<double> change = cell ? cell->change() : std::nullopt;
      json["norm"].push_back(cell ? Json(Short(cell->norm())) : Json());
      json["change"].push_back(change ? Json(Short(change)) : Json());
      json["nonfinite"].push_back(cell ? cell->nonfinite.nan + cell->nonfinite.inf : 0);
    }
    data["rows"].push_back(std::move(json));
  }
  return absl::StrReplaceAll(data.dump(), {{"<", "\\u003c"}});
}

std::string Headline(const std::string& absolute_path, const RunHistory& history) {
  std::string what = absl::StrCat(Counted(std::ssize(history.steps), "checkpoint"), " of a run, steps ",
                                  history.steps.front().step, " to ", history.steps.back().step);
  if (history.left_out > 0) {
    absl::StrAppend(&what, "; ", history.left_out, " more between them were not read: a page has at most ",
                    kMaxRunSteps);
  }
  return absl::StrCat("<h1>", Name(ShortPath(absolute_path)), "</h1><p>", what, "<br>", Name(absolute_path), "</p>\n");
}

std::string Tiles(const RunHistory& history, const std::vector<MapRow>& rows) {
  int64_t unread = 0;
  NonFinite nonfinite;
  for (const RunStep& step : history.steps) {
    unread += step.problem.empty() ? 0 : 1;
    nonfinite.Add(step.model().nonfinite);
  }
  const auto largest = LargestChange(history, rows[0]);
  return absl::StrCat(
      "<div class=\"tiles\">", Tile(Count(std::ssize(history.steps)), "checkpoints"),
      Tile(unread == 0 ? "none" : Count(unread), "damaged or not read", unread == 0 ? "good" : "bad"),
      Tile(nonfinite.any() ? absl::StrCat(Count(nonfinite.nan), " / ", Count(nonfinite.inf)) : "none",
           "NaN / infinite values, of all steps", nonfinite.any() ? "bad" : "good"),
      largest ? Tile(Short(largest->first), absl::StrCat("largest change of the model, at step ", largest->second))
              : "",
      "</div>\n");
}

}  // namespace

std::string RunPage(const std::string& absolute_path, const RunHistory& history) {
  const std::vector<PageScript> scripts = {kTableScript, kRunScript};
  const std::vector<MapRow> rows = RowsOf(history);
  std::string html = PageHead(
      ShortPath(absolute_path),
      absl::StrCat(kRunStyle, ColumnLabels("steps", StepColumns()), ColumnLabels("layers", LayerColumns())), scripts);
  absl::StrAppend(&html, Headline(absolute_path, history), Tiles(history, rows), FoundSection(history));
  absl::StrAppend(&html, ChangeSection(history, rows), NormSection(history, rows), Tables(history, rows));
  absl::StrAppend(&html, "<script type=\"application/json\" id=\"data\">", Data(history, rows), "</script>\n");
  return absl::StrCat(html, PageFoot("Made by ckpt inspect --html. Every value was read, and compared with its digest. "
                                     "Norms are of the model's finite values; NaN and infinity are counted in the "
                                     "optimizer too.",
                                     scripts));
}

}  // namespace fsdp
