// SPDX-License-Identifier: Apache-2.0
//
// ckpt diff: DiffCheckpoints does the work; this file prints its report, as text or as JSON. The text begins with the
// kinds of difference, since a reader wants to know first whether the two have other names, dtypes or values. Names,
// and rows of the table for tensors whose values differ, come after that, of each the first --top: the largest
// differences. Facts that a row cannot show (other dtypes, NaN on one side) follow it in words.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/diff_summary.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "fsdp/tools/commands/pages.h"
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

// Before anything is read: the page of --html must be neither an input nor inside a checkpoint.
absl::Status CheckPage(const std::string& page, const Comparison& comparison) {
  if (page.empty()) return absl::OkStatus();
  InputPaths inputs;
  for (const std::string& path : comparison.paths) AddCheckpoint(path, inputs);
  for (const auto& source : comparison.sources) {
    if (source != nullptr) AddSource(*source, inputs);
  }
  inputs.Add(absl::GetFlag(FLAGS_flat_layout));
  return CheckOutput(page, inputs);
}

// Opens both sides before comparing, so that an error about B comes before A is read.
absl::Status Compare(const DiffOptions& options, const std::string& page, Comparison& comparison) {
  FSDP_RETURN_IF_ERROR(CheckPage(page, comparison));
  for (int i = 0; i < 2; ++i) {
    FSDP_ASSIGN_OR_RETURN(comparison.sources[i], OpenSource(comparison.paths[i]));
  }
  FSDP_RETURN_IF_ERROR(CheckPage(page, comparison));
  FSDP_ASSIGN_OR_RETURN(comparison.report, DiffCheckpoints(*comparison.sources[0], *comparison.sources[1], options));
  return absl::OkStatus();
}

Json JsonOf(const TensorSource& source, const std::string& path) {
  Json json = {{"path", path}, {"format", source.format()}};
  json["kind"] = StateDictTypeName(source.contents().type);
  json["step"] = source.step() < 0 ? Json() : Json(source.step());
  json["world_size"] = source.world_size();
  json["left_out"] = source.left_out();
  if (source.is_ours() && !source.layout().notes.empty()) json["skipped"] = source.layout().notes;
  return json;
}

// A value that does not exist is null and never left out, so that every tensor has the same members.
Json JsonOf(const ValueDifference& values) {
  Json json = {{"elements", values.numel},
               {"changed", values.changed},
               {"share_changed", values.share_changed()},
               {"outside_tolerance", values.outside},
               {"beyond_rounding", values.beyond_rounding},
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

Json JsonOf(const std::vector<TensorDiff>& tensors) {
  Json json = Json::array();
  for (const TensorDiff& tensor : tensors) {
    Json item = {{"name", tensor.name}, {"equal", tensor.equal()}};
    item["dtype"] = {DTypeName(tensor.dtype_a), DTypeName(tensor.dtype_b)};
    item["shape"] = {JsonOf(tensor.shape_a), JsonOf(tensor.shape_b)};
    item["values"] = tensor.shape_a == tensor.shape_b ? JsonOf(tensor.values) : Json();
    json.push_back(std::move(item));
  }
  return json;
}

// Of several tensors, over which the index of an element has no meaning.
Json JsonOfTotal(const ValueDifference& total) {
  Json json = JsonOf(total);
  json.erase("first_changed");
  return json;
}

// Null if no names differ by a prefix.
Json JsonOf(const RenamedTensors& renamed) {
  if (renamed.compared == 0) return {};
  return {{"prefix", {renamed.prefix_a, renamed.prefix_b}},
          {"total", JsonOfTotal(renamed.total)},
          {"tensors", JsonOf(renamed.tensors)}};
}

std::string ToJson(const Comparison& comparison) {
  const DiffReport& report = comparison.report;
  const DiffSummary summary = SummariseDiff(report);
  Json json = {{"equal", report.equal()}, {"kinds", summary.kinds}, {"summary", summary.sentences}};
  json["a"] = JsonOf(*comparison.sources[0], comparison.paths[0]);
  json["b"] = JsonOf(*comparison.sources[1], comparison.paths[1]);
  json["only_in_a"] = report.only_in_a;
  json["only_in_b"] = report.only_in_b;
  json["structure"] = report.structure;
  json["respelled_texts"] = report.respelled_texts;
  json["renamed"] = JsonOf(report.renamed);
  json["largest"] = Json::array();
  for (const TensorDiff* tensor : LargestDifferences(report, static_cast<size_t>(absl::GetFlag(FLAGS_top)))) {
    json["largest"].push_back(tensor->name);
  }
  json["total"] = JsonOfTotal(report.total);
  json["tensors"] = JsonOf(report.tensors);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Headline(const TensorSource& source, const std::string& path) {
  return absl::StrCat(path, ", ", KindOfSource(source));
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

// The first `top` of `lines`, which are printable, each after `prefix`, and the number of the others.
void PrintFirst(const std::string& prefix, const std::vector<std::string>& lines, size_t top) {
  for (size_t i = 0; i < std::min(top, lines.size()); ++i) Print("%s%s\n", prefix, lines[i]);
  if (lines.size() > top) Print("%s%d more (--top=%d; --json has all)\n", prefix, lines.size() - top, top);
}

std::vector<std::string> PrintableNames(const std::vector<std::string>& names) {
  std::vector<std::string> printable;
  for (const std::string& name : names) printable.push_back(Printable(name));
  return printable;
}

// Tensors of different shapes cannot be compared, so they are lines of words instead of rows.
void PrintShapes(const DiffReport& report, size_t top) {
  std::vector<std::string> lines;
  for (const auto* tensors : {&report.tensors, &report.renamed.tensors}) {
    for (const TensorDiff& tensor : *tensors) {
      if (tensor.shape_a != tensor.shape_b) lines.push_back(Printable(tensor.name) + Remarks(tensor));
    }
  }
  PrintFirst("", lines, top);
}

// The rows of the table, the largest difference first.
void PrintValues(const DiffReport& report, size_t top) {
  const std::vector<const TensorDiff*> changed = LargestDifferences(report, std::string::npos);
  if (changed.empty()) return;
  Print("  %10s  %10s  %10s  %9s  %12s  %s\n", "max abs", "max rel", "ULPs", "changed", "cosine", "tensor");
  for (size_t i = 0; i < std::min(top, changed.size()); ++i) {
    Print("%s%s\n", Row(Printable(changed[i]->name), changed[i]->values), Remarks(*changed[i]));
  }
  if (changed.size() > top) Print("  %d more (--top=%d; --json has all)\n", changed.size() - top, top);
  ValueDifference total = report.total;
  total.Add(report.renamed.total);
  Print("%s\n", Row("all tensors", total));
}

void PrintSummary(const DiffReport& report) {
  const DiffSummary summary = SummariseDiff(report);
  if (summary.kinds.empty()) return;
  if (summary.kinds.size() > 1) {
    Print("differences: %s\n", absl::StrJoin(summary.kinds, ", "));
  } else {
    Print("difference: %s only\n", summary.kinds.front());
  }
  for (const std::string& sentence : summary.sentences) Print("%s\n", sentence);
}

// The last line: how many tensors that both have are equal. Names that differ by a prefix are names of both.
void PrintResult(const DiffReport& report, const OneSidedNames& names, const DiffOptions& options) {
  if (report.equal()) {
    const char* how = report.total.changed == 0 ? "every value is equal" : "every value is within the tolerance";
    Print("equal: %s, %s; %s\n", Counted(report.compared, "tensor"), Counted(report.total.numel, "element"), how);
    return;
  }
  const auto count = [](const std::vector<TensorDiff>& tensors) {
    return std::count_if(tensors.begin(), tensors.end(), [](const TensorDiff& tensor) { return !tensor.equal(); });
  };
  const RenamedTensors& renamed = report.renamed;
  const bool is_exact = options.tolerance.atol == 0 && options.tolerance.rtol == 0;
  Print("different: %d of %d tensors that both have%s, %d only in A, %d only in B",
        count(report.tensors) + count(renamed.tensors), report.compared + renamed.compared,
        is_exact ? "" : " beyond the tolerance", names.a.size(), names.b.size());
  if (renamed.compared > 0) Print(", %d under another prefix", renamed.compared);
  if (!report.structure.empty()) Print(", %d texts or aliases", report.structure.size());
  Print("\n");
}

// For people. Columns have fixed widths, so that tables of two runs can be compared line by line.
void PrintText(const Comparison& comparison, const DiffOptions& options) {
  const DiffReport& report = comparison.report;
  const auto top = static_cast<size_t>(absl::GetFlag(FLAGS_top));
  Print("A: %s\nB: %s\n", Headline(*comparison.sources[0], comparison.paths[0]),
        Headline(*comparison.sources[1], comparison.paths[1]));
  for (int i = 0; i < 2; ++i) {
    // Of a ROOT: the steps that were skipped.
    const std::vector<std::string>& notes = comparison.sources[i]->layout().notes;
    if (comparison.sources[i]->is_ours()) PrintFirst(absl::StrFormat("skipped in %c: ", "AB"[i]), notes, notes.size());
    for (const std::string& left_out : comparison.sources[i]->left_out()) {
      Print("left out of %c: %s\n", "AB"[i], left_out);
    }
  }
  PrintSummary(report);
  const OneSidedNames names = NamesOfOneSide(report);
  PrintFirst("only in A: ", PrintableNames(names.a), top);
  PrintFirst("only in B: ", PrintableNames(names.b), top);
  PrintFirst("", report.structure, top);
  if (report.respelled_texts > 0) {
    Print("%d texts are equal as JSON, and spelled differently\n", report.respelled_texts);
  }
  PrintShapes(report, top);
  PrintValues(report, top);
  PrintResult(report, names, options);
}

}  // namespace

int RunDiff(const CommandLine& line) {
  DiffOptions options;
  options.tolerance = {absl::GetFlag(FLAGS_atol), absl::GetFlag(FLAGS_rtol)};
  options.model_only = absl::GetFlag(FLAGS_model_only);
  const std::string page = absl::GetFlag(FLAGS_html);
  // The table has rows for tensors that differ.
  options.list_equal = absl::GetFlag(FLAGS_json) || !page.empty();
  if (absl::GetFlag(FLAGS_top) < 0) {
    return ReportUsage("ckpt diff", absl::InvalidArgumentError(
                                        absl::StrCat("--top=", absl::GetFlag(FLAGS_top), ", expected 0 or more")));
  }
  // Written so that NaN is refused too.
  if (!(options.tolerance.atol >= 0) || !(options.tolerance.rtol >= 0)) {
    return ReportUsage("ckpt diff", absl::InvalidArgumentError(absl::StrCat("--atol=", options.tolerance.atol,
                                                                            " --rtol=", options.tolerance.rtol,
                                                                            ", expected numbers of 0 and more")));
  }
  Comparison comparison = {{line.operands[0], line.operands[1]}, {}, {}};
  absl::Status status;
  // The block ends the progress line before anything else is printed.
  {
    Progress progress("diff");
    options.progress = progress.callback();
    status = Compare(options, page, comparison);
  }
  if (status.ok() && !page.empty()) {
    status = WriteDiffPage(page, {comparison.paths[0], *comparison.sources[0]},
                           {comparison.paths[1], *comparison.sources[1]}, comparison.report);
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
