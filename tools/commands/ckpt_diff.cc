// SPDX-License-Identifier: Apache-2.0
//
// ckpt diff: DiffCheckpoints does the work; this file prints its report, as a table or as JSON. The table has rows only
// for tensors that differ, and a line for all tensors. Facts that a row cannot show (other shapes or dtypes, NaN on one
// side) follow it in words.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// Two checkpoints and their differences.
struct Comparison {
  std::string paths[2];
  std::unique_ptr<TensorSource> sources[2];
  DiffReport report;
};

// Opens both sides before comparing, so that an error about B comes before A is read.
absl::Status Compare(const DiffOptions& options, Comparison& comparison) {
  for (int i = 0; i < 2; ++i) {
    FSDP_ASSIGN_OR_RETURN(comparison.sources[i], OpenSource(comparison.paths[i]));
  }
  FSDP_ASSIGN_OR_RETURN(comparison.report, DiffCheckpoints(*comparison.sources[0], *comparison.sources[1], options));
  return absl::OkStatus();
}

Json JsonOf(const TensorSource& source, const std::string& path) {
  Json json = {{"path", path}, {"format", source.format()}};
  json["kind"] = StateDictTypeName(source.contents().type);
  json["step"] = source.step() < 0 ? Json() : Json(source.step());
  json["world_size"] = source.world_size();
  json["left_out"] = source.left_out();
  return json;
}

// A value that does not exist is null and never left out, so that every tensor has the same members.
Json JsonOf(const ValueDifference& values) {
  Json json = {{"elements", values.numel},
               {"changed", values.changed},
               {"share_changed", values.share_changed()},
               {"outside_tolerance", values.outside},
               {"nan_mismatches", values.nan_mismatches},
               {"nan_in_both", values.nan_both},
               {"max_abs", values.max_abs},  // JSON has no infinity: it becomes null
               {"max_rel", values.max_rel},
               {"max_ulps", nullptr},
               {"cosine", nullptr},
               {"first_changed", nullptr}};
  if (values.ulps) json["max_ulps"] = *values.ulps;
  if (values.cosine()) json["cosine"] = *values.cosine();
  if (values.first_changed >= 0) json["first_changed"] = values.first_changed;
  return json;
}

Json JsonOf(const Shape& shape) { return std::vector<int64_t>(shape.dims().begin(), shape.dims().end()); }

std::string ToJson(const Comparison& comparison) {
  const DiffReport& report = comparison.report;
  Json json = {{"equal", report.equal()}};
  json["a"] = JsonOf(*comparison.sources[0], comparison.paths[0]);
  json["b"] = JsonOf(*comparison.sources[1], comparison.paths[1]);
  json["only_in_a"] = report.only_in_a;
  json["only_in_b"] = report.only_in_b;
  json["structure"] = report.structure;
  json["respelled_texts"] = report.respelled_texts;
  json["total"] = JsonOf(report.total);
  json["total"].erase("first_changed");  // an index has no meaning over several tensors
  json["tensors"] = Json::array();
  for (const TensorDiff& tensor : report.tensors) {
    Json item = {{"name", tensor.name}, {"equal", tensor.equal()}};
    item["dtype"] = {DTypeName(tensor.dtype_a), DTypeName(tensor.dtype_b)};
    item["shape"] = {JsonOf(tensor.shape_a), JsonOf(tensor.shape_b)};
    item["values"] = tensor.shape_a == tensor.shape_b ? JsonOf(tensor.values) : Json();
    json["tensors"].push_back(std::move(item));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Checkpoints of other formats have no kind, and often neither a step nor a world size.
std::string Headline(const TensorSource& source, const std::string& path) {
  if (!source.is_ours()) return absl::StrCat(path, ", ", std::string(source.format()));
  return absl::StrCat(path, ", ", std::string(StateDictTypeName(source.contents().type)), ", step ", source.step(),
                      ", world size ", source.world_size());
}

// One line of the table. "-" marks columns without a value: ULPs of different dtypes, the cosine of a zero vector.
std::string Row(const std::string& name, const ValueDifference& values) {
  const std::string ulps = values.ulps ? absl::StrCat(*values.ulps) : "-";
  const std::string cosine = values.cosine() ? absl::StrFormat("%.9f", *values.cosine()) : "-";
  return absl::StrFormat("  %10.4g  %10.4g  %10s  %8.4f%%  %12s  %s", values.max_abs, values.max_rel, ulps,
                         100 * values.share_changed(), cosine, name);
}

// Facts that the columns of the table do not show, as text after the name; may be empty.
std::string Remarks(const TensorDiff& tensor) {
  std::string text;
  if (tensor.shape_a != tensor.shape_b) {
    return absl::StrCat(": shape ", tensor.shape_a.ToString(), " in A, ", tensor.shape_b.ToString(), " in B");
  }
  if (tensor.dtype_a != tensor.dtype_b) {
    absl::StrAppend(&text, ", ", std::string(DTypeName(tensor.dtype_a)), " in A, ",
                    std::string(DTypeName(tensor.dtype_b)), " in B");
  }
  if (tensor.values.changed > 0) {
    if (tensor.values.first_changed > 0) absl::StrAppend(&text, ", from element ", tensor.values.first_changed, " on");
    if (tensor.equal()) absl::StrAppend(&text, ", within the tolerance");
  }
  if (tensor.values.nan_mismatches > 0) absl::StrAppend(&text, ", NaN on one side: ", tensor.values.nan_mismatches);
  return text;
}

// Tensors of different shapes cannot be compared, so they are a line of words instead of a row.
void PrintTensors(const DiffReport& report) {
  bool is_first = true;
  for (const TensorDiff& tensor : report.tensors) {
    const std::string name = Printable(tensor.name);
    if (tensor.shape_a != tensor.shape_b) {
      Print("%s%s\n", name, Remarks(tensor));
      continue;
    }
    if (tensor.equal() && tensor.values.changed == 0) continue;
    if (is_first) {
      Print("  %10s  %10s  %10s  %9s  %12s  %s\n", "max abs", "max rel", "ULPs", "changed", "cosine", "tensor");
    }
    is_first = false;
    Print("%s%s\n", Row(name, tensor.values), Remarks(tensor));
  }
  if (!is_first) Print("%s\n", Row("all tensors", report.total));
}

// For people. Columns have fixed widths, so that tables of two runs can be compared line by line. First both headlines,
// then differences in structure, then the table, and one line with the result.
void PrintText(const Comparison& comparison, const DiffOptions& options) {
  const DiffReport& report = comparison.report;
  Print("A: %s\nB: %s\n", Headline(*comparison.sources[0], comparison.paths[0]),
        Headline(*comparison.sources[1], comparison.paths[1]));
  for (int i = 0; i < 2; ++i) {
    for (const std::string& left_out : comparison.sources[i]->left_out()) {
      Print("left out of %c: %s\n", "AB"[i], left_out);
    }
  }
  for (const std::string& name : report.only_in_a) Print("only in A: %s\n", Printable(name));
  for (const std::string& name : report.only_in_b) Print("only in B: %s\n", Printable(name));
  for (const std::string& sentence : report.structure) Print("%s\n", sentence);
  if (report.respelled_texts > 0)
    Print("%d texts are equal as JSON, and spelled differently\n", report.respelled_texts);
  PrintTensors(report);
  if (report.equal()) {
    const char* how = report.total.changed == 0 ? "every value is equal" : "every value is within the tolerance";
    Print("equal: %d tensors, %d elements; %s\n", report.compared, report.total.numel, how);
    return;
  }
  const auto differ = std::count_if(report.tensors.begin(), report.tensors.end(),
                                    [](const TensorDiff& tensor) { return !tensor.equal(); });
  const bool is_exact = options.tolerance.atol == 0 && options.tolerance.rtol == 0;
  Print("different: %d of %d tensors that both have%s, %d only in A, %d only in B\n", differ, report.compared,
        is_exact ? "" : " beyond the tolerance", report.only_in_a.size(), report.only_in_b.size());
}

}  // namespace

int RunDiff(const CommandLine& line) {
  DiffOptions options;
  options.tolerance = {absl::GetFlag(FLAGS_atol), absl::GetFlag(FLAGS_rtol)};
  options.model_only = absl::GetFlag(FLAGS_model_only);
  options.list_equal = absl::GetFlag(FLAGS_json);  // the table has rows for tensors that differ
  // Written so that NaN is refused too.
  if (!(options.tolerance.atol >= 0) || !(options.tolerance.rtol >= 0)) {
    return ReportUsageError("ckpt diff", absl::InvalidArgumentError(absl::StrCat("--atol=", options.tolerance.atol,
                                                                                 " --rtol=", options.tolerance.rtol,
                                                                                 ", expected numbers of 0 and more")));
  }
  Comparison comparison = {{line.operands[0], line.operands[1]}, {}, {}};
  absl::Status status;
  // The block ends the progress line before anything else is printed.
  {
    Progress progress("diff");
    options.progress = progress.callback();
    status = Compare(options, comparison);
  }
  const bool json = absl::GetFlag(FLAGS_json);
  if (!status.ok()) {
    if (json) Print("%s", ProblemJson(status));
    return ReportFailure("ckpt diff", status);
  }
  json ? Print("%s", ToJson(comparison)) : PrintText(comparison, options);
  return comparison.report.equal() ? kExitDone : kExitFailed;
}

}  // namespace fsdp
