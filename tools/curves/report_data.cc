// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/curves/report_data.h"

#include "absl/strings/str_replace.h"
#include "fsdp/base/quote.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

Json ValuesOf(const RunPart& part, Curve curve, double CurveValues::*which) {
  Json values = Json::array();
  for (const CurvePoint& point : part.points) {
    const CurveValues& of = point.of(curve);
    // JSON has no NaN; the script draws null as a gap.
    values.push_back(of.finite > 0 ? Json(of.*which) : Json());
  }
  return values;
}

Json PartData(const RunCurves& run, const RunPart& part) {
  Json data = {{"first", Json::array()}, {"last", Json::array()}};
  for (const CurvePoint& point : part.points) {
    data["first"].push_back(point.first_step);
    data["last"].push_back(point.last_step);
  }
  for (int i = 0; i < kCurves; ++i) {
    const auto curve = static_cast<Curve>(i);
    const CurveValues& total = run.total(curve);
    // By the whole run, so that all parts of a run have the same curves.
    if (total.finite + total.nonfinite == 0) continue;
    // The three are equal, so one of them keeps the page small.
    if (run.stride == 1) {
      data[CurveName(curve)] = ValuesOf(part, curve, &CurveValues::mean);
    } else {
      data[CurveName(curve)] = {{"min", ValuesOf(part, curve, &CurveValues::min)},
                                {"max", ValuesOf(part, curve, &CurveValues::max)},
                                {"mean", ValuesOf(part, curve, &CurveValues::mean)}};
    }
  }
  return data;
}

const char* UnitOf(Curve curve) {
  return curve == Curve::kPeakBytes ? "bytes" : curve == Curve::kHiddenShare ? "share" : "number";
}

}  // namespace

const char* CurveName(Curve curve) {
  switch (curve) {
    case Curve::kLoss:
      return "loss";
    case Curve::kGradNorm:
      return "grad_norm";
    case Curve::kLr:
      return "lr";
    case Curve::kTokensPerSecond:
      return "tokens_per_second";
    case Curve::kPeakBytes:
      return "peak_bytes";
    case Curve::kHiddenShare:
      return "hidden_share";
  }
  return "";
}

// "<" is written as an escape, so that no name can end the enclosing element or open a comment in it.
std::string ReportData(const std::vector<RunCurves>& runs, const std::vector<LineChart>& charts) {
  Json data = {{"charts", Json::object()}, {"runs", Json::array()}};
  for (int i = 0; i < kCurves; ++i) {
    const LineChart& chart = charts[i];
    // Without a drawing the pointer has nothing to show.
    if (chart.svg.empty()) continue;
    const auto curve = static_cast<Curve>(i);
    data["charts"][CurveName(curve)] = {{"steps", {chart.step0, chart.step1}},
                                        {"values", {chart.value0, chart.value1}},
                                        {"log", chart.is_log},
                                        {"unit", UnitOf(curve)}};
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunCurves& run = runs[i];
    Json parts = Json::array();
    for (const RunPart& part : run.parts) parts.push_back(PartData(run, part));
    data["runs"].push_back({{"path", Printable(run.path)},
                            {"name", Printable(run.name)},
                            {"class", RunClass(i)},
                            {"lines", run.lines},
                            {"stride", run.stride},
                            {"unfinished_bytes", run.unfinished_bytes},
                            {"saves", run.save_marks},
                            {"parts", std::move(parts)}});
  }
  return absl::StrReplaceAll(data.dump(), {{"<", "\\u003c"}});
}

}  // namespace fsdp
