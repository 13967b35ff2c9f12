// SPDX-License-Identifier: Apache-2.0
//
// A drawing is stretched to its place, so that it is as readable on a phone as on a wide screen: the curves are in a
// box of kExtent by kExtent units without an aspect ratio, whose strokes are not scaled, and labels have places in
// percent.
#include "fsdp/tools/curves/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {
namespace {

constexpr double kExtent = 1000;

// Of the height: a mark of a checkpoint, and the distance of a value that is not finite from the upper edge.
constexpr double kSaveHeight = 26;
constexpr double kAbove = 22;

// From here on small values would be invisible on a linear axis.
constexpr double kMinLogRatio = 50;

// Marks within this width share one, so that their number is bounded.
constexpr double kMarkDistance = 3;

// Lines closer than this share of the height look like one.
constexpr double kSameHeight = 4;

// Beyond this the difference of two values overflows.
constexpr double kLargest = 1e300;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// The marks of one kind and run: one per place.
class MarkPlaces {
 public:
  // True if a mark may be drawn at `x`; the place is then taken.
  bool Take(double x) { return taken_.insert(static_cast<int>(x / kMarkDistance)).second; }

 private:
  std::set<int> taken_;
};

// The distance of about `wanted` ticks: 1, 2 or 5 times a power of ten.
double TickStep(double span, int wanted) {
  const double power = std::pow(10, std::floor(std::log10(span / wanted)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (span / (power * factor) <= wanted) return power * factor;
  }
  return power * 10;
}

// A drawing in progress.
class Drawing {
 public:
  Drawing(const std::vector<RunCurves>& runs, const ChartOptions& options) : runs_(runs), options_(options) {}

  LineChart Draw();

 private:
  // In the order of the calls: each uses the members that those before have set.
  bool SetAxes();
  void DrawGrid();
  void DrawLabels();
  void DrawRun(size_t index);
  void FindTwins();
  bool Coincide(const RunCurves& a, const RunCurves& b) const;
  void DrawPart(const RunCurves& run, const RunPart& part, double superseded_from, const std::string& css);
  void DrawMarks(size_t index, const std::string& css);
  void DrawNonFinite(const RunCurves& run, const std::string& css);
  void Line(const std::vector<CurvePoint>& points, size_t begin, size_t end, const std::string& css);
  void Band(const std::vector<CurvePoint>& points, size_t begin, size_t end, const std::string& css);

  double X(double step) const { return (step - chart_.step0) / (chart_.step1 - chart_.step0) * kExtent; }
  double Scaled(double value) const {
    // On a logarithmic axis all values are positive: SetAxes chose it because of that.
    return chart_.is_log ? std::log10(value) : std::clamp(value, -kLargest, kLargest);
  }
  double Y(double value) const { return YOfScaled(Scaled(value)); }
  double YOfScaled(double scaled) const {
    return (1 - (scaled - chart_.value0) / (chart_.value1 - chart_.value0)) * kExtent;
  }
  double Middle(const CurvePoint& point) const {
    return X((static_cast<double>(point.first_step) + static_cast<double>(point.last_step)) / 2);
  }
  const CurveValues& ValuesOf(const CurvePoint& point) const { return point.of(options_.curve); }

  const std::vector<RunCurves>& runs_;
  const ChartOptions& options_;
  LineChart chart_;
  std::string svg_;
  std::string labels_;
  std::vector<size_t> twins_;  // by run: how many earlier ones have the same curve
};

bool Drawing::SetAxes() {
  Range steps;
  Range values;
  for (const RunCurves& run : runs_) {
    for (const RunPart& part : run.parts) {
      for (const CurvePoint& point : part.points) {
        steps.Include(static_cast<double>(point.first_step));
        steps.Include(static_cast<double>(point.last_step));
      }
    }
    const CurveValues& total = run.total(options_.curve);
    // The totals have the extremes of all lines, so the points need not be read for them.
    if (total.finite == 0) continue;
    values.Include(total.min);
    values.Include(total.max);
  }
  if (values.empty()) return false;
  chart_.is_log = options_.may_be_log && values.low > 0 && values.high / values.low >= kMinLogRatio;
  chart_.value0 = Scaled(values.low);
  chart_.value1 = Scaled(values.high);
  if (options_.from_zero) chart_.value0 = std::min(chart_.value0, 0.0);
  // A share is drawn on the whole range up to 100 %, so that charts can be compared.
  if (options_.unit == ValueUnit::kShare) chart_.value1 = std::max(chart_.value1, 1.0);
  // One value or a constant curve: the axis still needs a range.
  double margin = 0.05 * (chart_.value1 - chart_.value0);
  if (!(margin > 0)) margin = chart_.value0 == 0 ? 1 : 0.05 * std::abs(chart_.value0);
  // No margin beyond a bound that has a meaning: 100 %, or 0.
  if (options_.unit != ValueUnit::kShare) chart_.value1 += margin;
  if (!options_.from_zero || chart_.value0 < 0) chart_.value0 -= margin;
  // A run of one step still needs a width.
  const double step_margin = steps.low == steps.high ? 1 : 0;
  chart_.step0 = steps.low - step_margin;
  chart_.step1 = steps.high + step_margin;
  return true;
}

void Drawing::DrawGrid() {
  const auto label_y = [&](double scaled, const std::string& text) {
    const double y = YOfScaled(scaled);
    absl::StrAppendFormat(&svg_, "<path class=\"grid\" d=\"M0 %.1fH%.0f\"/>", y, kExtent);
    absl::StrAppendFormat(&labels_, "<text class=\"end\" dx=\"-8\" y=\"%.2f%%\" dy=\"4\">%s</text>", y / kExtent * 100,
                          text);
  };
  if (chart_.is_log) {
    const double span = chart_.value1 - chart_.value0;
    const double every = std::max(1.0, std::ceil(span / 5));
    for (double power = std::ceil(chart_.value0 - 1); power <= chart_.value1; ++power) {
      if (std::fmod(power, every) != 0) continue;
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double scaled = power + std::log10(factor);
        // Labels for 2 and 5 only if they do not crowd the axis.
        if ((factor != 1 && span > 2.2) || scaled > chart_.value1) break;
        if (scaled >= chart_.value0) label_y(scaled, ValueText(factor * std::pow(10, power), options_.unit));
      }
    }
  } else {
    const double step = TickStep(chart_.value1 - chart_.value0, options_.is_large ? 6 : 5);
    // Counted, since adding a small step to a large value may not change it.
    const double first = std::ceil(chart_.value0 / step);
    for (int i = 0; i < 12 && (first + i) * step <= chart_.value1; ++i) {
      label_y((first + i) * step, ValueText((first + i) * step, options_.unit));
    }
  }
  absl::StrAppendFormat(&svg_, "<path class=\"base\" d=\"M0 %.0fH%.0f\"/>", kExtent, kExtent);
  DrawLabels();
}

// The axis of steps, and the titles of both. A phone has room for a third of the steps of a wide chart.
void Drawing::DrawLabels() {
  const double step = std::max(1.0, TickStep(chart_.step1 - chart_.step0, options_.is_large ? 12 : 6));
  const double first = std::ceil(chart_.step0 / step);
  const int phone = options_.is_large ? 3 : 2;
  for (int i = 0; i < 20 && (first + i) * step <= chart_.step1; ++i) {
    absl::StrAppendFormat(&labels_, "<text%s x=\"%.2f%%\" y=\"100%%\" dy=\"17\">%s</text>",
                          i % phone == 0 ? "" : " class=\"wide\"", X((first + i) * step) / kExtent * 100,
                          ValueText((first + i) * step, ValueUnit::kNumber));
  }
  absl::StrAppend(&labels_, "<text class=\"end\" x=\"100%\" y=\"100%\" dy=\"33\">step</text>");
  if (options_.axis_title == nullptr || *options_.axis_title == '\0') return;
  absl::StrAppend(&labels_, "<text class=\"start\" dx=\"-50\" dy=\"-12\">", options_.axis_title,
                  chart_.is_log ? ", logarithmic" : "", "</text>");
}

// True if at least half of the points that both have at the same steps look the same.
bool Drawing::Coincide(const RunCurves& a, const RunCurves& b) const {
  std::map<int64_t, double> heights;
  for (const RunPart& part : a.parts) {
    for (const CurvePoint& point : part.points) {
      if (ValuesOf(point).finite > 0) heights[point.first_step] = Y(ValuesOf(point).mean);
    }
  }
  int64_t shared = 0;
  int64_t same = 0;
  for (const RunPart& part : b.parts) {
    for (const CurvePoint& point : part.points) {
      const auto height = heights.find(point.first_step);
      if (ValuesOf(point).finite == 0 || height == heights.end()) continue;
      ++shared;
      same += std::abs(height->second - Y(ValuesOf(point).mean)) < kSameHeight ? 1 : 0;
    }
  }
  return shared > 0 && 2 * same >= shared;
}

void Drawing::FindTwins() {
  twins_.assign(runs_.size(), 0);
  for (size_t b = 0; b < runs_.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!Coincide(runs_[a], runs_[b])) continue;
      // The first one names it; the others have coincided with that already.
      if (twins_[b]++ == 0) chart_.coincident.push_back({a, b});
    }
  }
}

// A line with one point is drawn as a dot ("h0" with round caps), since a line without length is invisible.
void Drawing::Line(const std::vector<CurvePoint>& points, size_t begin, size_t end, const std::string& css) {
  std::string path;
  size_t length = 0;
  for (size_t i = begin; i < end; ++i) {
    if (ValuesOf(points[i]).finite == 0) {
      if (length == 1) path += "h0";
      length = 0;
      continue;
    }
    absl::StrAppendFormat(&path, "%c%.1f %.1f", length == 0 ? 'M' : 'L', Middle(points[i]),
                          Y(ValuesOf(points[i]).mean));
    ++length;
  }
  if (length == 1) path += "h0";
  if (!path.empty()) absl::StrAppend(&svg_, "<path class=\"line ", css, "\" d=\"", path, "\"/>");
}

void Drawing::Band(const std::vector<CurvePoint>& points, size_t begin, size_t end, const std::string& css) {
  std::string path;
  // One closed shape per stretch of finite values: the maxima forwards, then the minima backwards.
  while (begin < end) {
    size_t stop = begin;
    while (stop < end && ValuesOf(points[stop]).finite > 0) ++stop;
    for (size_t i = begin; i < stop; ++i) {
      absl::StrAppendFormat(&path, "%c%.1f %.1f", i == begin ? 'M' : 'L', Middle(points[i]),
                            Y(ValuesOf(points[i]).max));
    }
    for (size_t i = stop; i > begin; --i) {
      absl::StrAppendFormat(&path, "L%.1f %.1f", Middle(points[i - 1]), Y(ValuesOf(points[i - 1]).min));
    }
    if (stop > begin) path += "Z";
    begin = stop + 1;
  }
  if (!path.empty()) absl::StrAppend(&svg_, "<path class=\"band ", css, "\" d=\"", path, "\"/>");
}

// The steps from `superseded_from` on were trained again. The pale line begins at the last point of the kept part.
void Drawing::DrawPart(const RunCurves& run, const RunPart& part, double superseded_from, const std::string& css) {
  const std::vector<CurvePoint>& points = part.points;
  const auto is_superseded = [&](const CurvePoint& point) {
    return static_cast<double>(point.last_step) >= superseded_from;
  };
  const size_t kept = std::find_if(points.begin(), points.end(), is_superseded) - points.begin();
  // Below the line. With one line per point the band has no height.
  if (run.stride > 1) Band(points, 0, points.size(), css);
  if (kept < points.size()) Line(points, kept == 0 ? 0 : kept - 1, points.size(), absl::StrCat(css, " lost"));
  if (kept > 0) Line(points, 0, kept, css);
}

void Drawing::DrawMarks(size_t index, const std::string& css) {
  const RunCurves& run = runs_[index];
  MarkPlaces restarts;
  for (size_t i = 1; i < run.parts.size(); ++i) {
    const double x = X(static_cast<double>(run.parts[i].first_step));
    // The first mark of a place has the title; the others would be under it.
    if (!restarts.Take(x)) continue;
    absl::StrAppendFormat(
        &svg_, "<path class=\"restart %s\" d=\"M%.1f 0V%.0f\"><title>restart at step %s%s</title></path>", css, x,
        kExtent, Count(run.parts[i].first_step), runs_.size() > 1 ? absl::StrCat(" of ", Html(run.name)) : "");
  }
  std::string saves;
  MarkPlaces places;
  // Above each other, so that the last run does not cover the others.
  const double lift = (kSaveHeight + 4) * static_cast<double>(index % 8);
  for (const int64_t step : run.save_marks) {
    const double x = X(static_cast<double>(step));
    if (!places.Take(x)) continue;
    absl::StrAppendFormat(&saves, "M%.1f %.0fv-%.0f", x, kExtent - lift, kSaveHeight);
  }
  if (!saves.empty()) absl::StrAppend(&svg_, "<path class=\"save ", css, "\" d=\"", saves, "\"/>");
}

void Drawing::DrawNonFinite(const RunCurves& run, const std::string& css) {
  const int64_t count = run.total(options_.curve).nonfinite;
  if (count == 0) return;
  std::string dots;
  MarkPlaces places;
  for (const RunPart& part : run.parts) {
    for (const CurvePoint& point : part.points) {
      const double x = Middle(point);
      if (ValuesOf(point).nonfinite == 0 || !places.Take(x)) continue;
      absl::StrAppendFormat(&dots, "M%.1f -%.0fh0", x, kAbove);
    }
  }
  absl::StrAppendFormat(&svg_, "<path class=\"nonfinite %s\" d=\"%s\"><title>%s of %s lines not finite</title></path>",
                        css, dots, Count(count), Count(run.lines));
}

void Drawing::DrawRun(size_t index) {
  const RunCurves& run = runs_[index];
  const std::string css = absl::StrCat(RunClass(index), twins_[index] == 0   ? ""
                                                        : twins_[index] == 1 ? " twin"
                                                                             : " twin2");
  // A part is superseded from the earliest step at which any later part begins.
  std::vector<double> superseded(run.parts.size(), INFINITY);
  for (size_t i = run.parts.size(); i-- > 1;) {
    superseded[i - 1] = std::min(superseded[i], static_cast<double>(run.parts[i].first_step));
  }
  for (size_t i = 0; i < run.parts.size(); ++i) DrawPart(run, run.parts[i], superseded[i], css);
  DrawMarks(index, RunClass(index));
  DrawNonFinite(run, RunClass(index));
}

LineChart Drawing::Draw() {
  if (!SetAxes()) return {};
  FindTwins();
  svg_ =
      absl::StrFormat("<svg class=\"lines\" viewBox=\"0 0 %.0f %.0f\" preserveAspectRatio=\"none\">", kExtent, kExtent);
  DrawGrid();
  for (size_t i = 0; i < runs_.size(); ++i) DrawRun(i);
  chart_.svg = absl::StrCat("<div class=\"plot", options_.is_large ? " large" : "", "\"><svg class=\"chart\">", svg_,
                            "</svg>", labels_, "</svg></div>");
  return chart_;
}

}  // namespace

std::string ValueText(double value, ValueUnit unit) {
  if (!std::isfinite(value)) return "–";
  if (unit == ValueUnit::kShare) return absl::StrFormat("%.3g %%", 100 * value);
  if (unit == ValueUnit::kBytes) return value < 0 ? absl::StrFormat("%.4g B", value) : FormatBytes(value);
  const double size = std::abs(value);
  constexpr struct {
    double from;
    const char* suffix;
  } kLarge[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  std::string text = absl::StrFormat("%.4g", value);
  for (const auto& [from, suffix] : kLarge) {
    // Four digits are short enough without a suffix, and from 1e15 on an exponent is clearer.
    if (size < std::max(from, 1e4) || size < from || size >= 1e15) continue;
    text = absl::StrFormat("%.4g%s", value / from, suffix);
    break;
  }
  if (size != 0 && size < 1e-3) text = absl::StrFormat("%.3e", value);
  // "3.000e-04" as "3e-4".
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;
  std::string digits = text.substr(0, e);
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
  }
  int exponent = 0;
  const bool ok = absl::SimpleAtoi(text.substr(e + 1), &exponent);
  return ok ? absl::StrCat(digits, "e", exponent) : text;
}

std::string RunClass(size_t index) { return absl::StrCat("r", index % 8, index < 8 ? "" : " dashed"); }

LineChart DrawLineChart(const std::vector<RunCurves>& runs, const ChartOptions& options) {
  return Drawing(runs, options).Draw();
}

}  // namespace fsdp
