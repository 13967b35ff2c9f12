// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/published_runs.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tools/simulation/bandwidth.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

// Reads members of one object; keeps the first error, of a member that is missing or of another type.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  std::string Text(const char* field) { return Has(field, &Json::is_string) ? object_[field].get<std::string>() : ""; }
  double Number(const char* field) { return Has(field, &Json::is_number) ? object_[field].get<double>() : 0; }
  int Count(const char* field) { return Has(field, &Json::is_number_integer) ? object_[field].get<int>() : 0; }
  std::string TextOr(const char* field, const char* otherwise) {
    return object_.is_object() && object_.contains(field) ? Text(field) : otherwise;
  }
  // Optional: false if it is absent.
  bool IsTrue(const char* field) { return object_.is_object() && object_.value(field, false); }
  const absl::Status& status() const { return status_; }

 private:
  // Later errors would follow from the first, or hide it.
  bool Has(const char* field, bool (Json::*is)() const noexcept) {
    if (object_.is_object() && object_.contains(field) && (object_[field].*is)()) return true;
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("published runs: ", where_, ": ", field, " is missing or of another type"));
    }
    return false;
  }

  const Json& object_;
  const std::string where_;
  absl::Status status_;
};

// The properties that rows of one class share.
struct RunClass {
  DeviceModel device;
  ComputePrecision precision = ComputePrecision::kBFloat16;
  KernelStyle kernels = KernelStyle::kFused;
  bool fused_attention = true;
};

absl::StatusOr<RunClass> ParseClass(const std::string& name, const Json& object) {
  Fields fields(object, absl::StrCat("class \"", name, "\""));
  const std::string device = fields.Text("device"), dtype = fields.Text("dtype"), kernels = fields.Text("kernels");
  const double achievable = fields.Number("achievable");
  FSDP_RETURN_IF_ERROR(fields.status());
  RunClass parsed;
  FSDP_ASSIGN_OR_RETURN(parsed.precision, ParseComputePrecision(dtype));
  FSDP_ASSIGN_OR_RETURN(parsed.device, DevicePreset(device, parsed.precision));
  FSDP_ASSIGN_OR_RETURN(parsed.kernels, ParseKernelStyle(kernels));
  // The preset has a share too, but shares are fitted in this file.
  parsed.device.achievable = achievable;
  parsed.fused_attention = !fields.IsTrue("unfused_attention");
  return parsed;
}

absl::StatusOr<PublishedRun> ParseRun(const Json& object, const std::map<std::string, RunClass>& classes) {
  PublishedRun run;
  // Without a name the error can only say "a row".
  run.name = Fields(object, "a row").Text("name");
  Fields fields(object, absl::StrCat("row \"", run.name, "\""));
  // Again, for the error of a row without a name.
  fields.Text("name");
  run.source = fields.Text("source");
  run.conditions = fields.Text("conditions");
  run.class_name = fields.Text("class");
  run.metric = fields.Text("metric");
  run.published = fields.Number("published");
  SimulatedJob& job = run.job;
  job.ranks = fields.Count("ranks");
  job.hosts = fields.Count("hosts");
  job.work.batch_size = fields.Count("batch_size");
  job.work.seq_len = fields.Count("seq_len");
  const std::string config = fields.Text("config"), checkpointing = fields.Text("activation_checkpointing");
  const std::string host_link = fields.Text("host_link"), strategy = fields.TextOr("strategy", "full_shard");
  const std::string reduce_dtype = fields.TextOr("reduce_dtype", "float32");
  // Before anything is parsed: a missing member gives an empty text, which would be a second error.
  FSDP_RETURN_IF_ERROR(fields.status());
  // Rows must not have hardware or kernels of their own: all freedom is in the class.
  const auto found = classes.find(run.class_name);
  if (found == classes.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("published runs: row \"", run.name, "\": no class \"", run.class_name, "\""));
  }
  if (run.metric != "tokens_per_second" && run.metric != "tflops") {
    return absl::InvalidArgumentError(absl::StrCat("published runs: row \"", run.name, "\": metric \"", run.metric,
                                                   "\", wanted tokens_per_second or tflops"));
  }
  job.device = found->second.device;
  job.precision = found->second.precision;
  job.work.kernels = found->second.kernels;
  job.work.fused_attention = found->second.fused_attention;
  FSDP_ASSIGN_OR_RETURN(job.config, ReadModelConfig(config));
  FSDP_ASSIGN_OR_RETURN(job.work.checkpointing, ParseCheckpointing(checkpointing));
  FSDP_ASSIGN_OR_RETURN(job.plan.strategy, ParseShardingStrategy(strategy));
  job.plan.reduce_dtype = reduce_dtype == "float32" ? DType::kFloat32 : DType::kBFloat16;
  // Links between hosts differ from row to row; links within a host belong to the device.
  job.links.local_bandwidth = job.device.local_bandwidth;
  FSDP_ASSIGN_OR_RETURN(job.links.host_bandwidth, ParseBandwidth(host_link));
  return run;
}

std::string Percent(double share) { return absl::StrFormat("%+.1f %%", 100 * share); }

absl::StatusOr<std::string> DeltaRow(const PublishedRuns& runs, const PublishedDelta& delta) {
  const PublishedRun* from = nullptr;
  const PublishedRun* to = nullptr;
  for (const PublishedRun& run : runs.runs) {
    if (run.name == delta.from) from = &run;
    if (run.name == delta.to) to = &run;
  }
  // A name that is spelled differently would otherwise compare a row with nothing.
  if (from == nullptr || to == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("published runs: no rows \"", delta.from, "\" and \"", delta.to, "\" for a delta"));
  }
  FSDP_ASSIGN_OR_RETURN(const double before, SimulatedMetric(*from));
  FSDP_ASSIGN_OR_RETURN(const double after, SimulatedMetric(*to));
  const double published = to->published / from->published - 1, simulated = after / before - 1;
  return absl::StrCat("| ", delta.from, " to ", to->job.ranks, " ranks | ", Percent(published), " | ",
                      Percent(simulated), " | ", Percent(simulated - published), " |\n");
}

}  // namespace

absl::StatusOr<PublishedRuns> ParsePublishedRuns(std::string_view text) {
  // All members are checked before any is read, since operator[] of a const object must not be given a missing name.
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const char* member : {"classes", "rows", "deltas", "not_modelled"}) {
    if (json.is_object() && json.contains(member) && json[member].is_structured()) continue;
    return absl::InvalidArgumentError(absl::StrCat("published runs: wanted a JSON object with ", member));
  }
  std::map<std::string, RunClass> classes;
  for (const auto& [name, object] : json["classes"].items()) {
    FSDP_ASSIGN_OR_RETURN(classes[name], ParseClass(name, object));
  }
  PublishedRuns runs;
  for (const Json& object : json["rows"]) {
    FSDP_ASSIGN_OR_RETURN(PublishedRun run, ParseRun(object, classes));
    runs.runs.push_back(std::move(run));
  }
  for (const Json& object : json["deltas"]) {
    Fields fields(object, "a delta");
    runs.deltas.push_back({fields.Text("from"), fields.Text("to")});
    FSDP_RETURN_IF_ERROR(fields.status());
  }
  for (const Json& object : json["not_modelled"]) {
    Fields fields(object, "a row that is not modelled");
    runs.not_modelled.push_back(
        {fields.Text("name"), fields.Text("source"), fields.Text("published"), fields.Text("why")});
    FSDP_RETURN_IF_ERROR(fields.status());
  }
  return runs;
}

absl::StatusOr<double> SimulatedMetric(const PublishedRun& run) {
  FSDP_ASSIGN_OR_RETURN(const SimulatedStep step, SimulateStep(run.job));
  // Publications count the FLOP that the device computes, including recomputation.
  if (run.metric == "tflops") return step.flops_per_rank / step.timeline.seconds / 1e12;
  return step.tokens_per_second / run.job.ranks;
}

absl::StatusOr<std::string> PublishedTable(const PublishedRuns& runs) {
  std::string table = "| run | class | published | simulated | error | |\n|---|---|---|---|---|---|\n";
  for (const PublishedRun& run : runs.runs) {
    FSDP_ASSIGN_OR_RETURN(const double simulated, SimulatedMetric(run));
    const double error = simulated / run.published - 1;
    // docs/simulate.md counts a row as missed beyond 10 %.
    const char* note = error > 0.1 || error < -0.1 ? "missed" : "";
    absl::StrAppendFormat(&table, "| %s | %s | %g | %.0f | %s | %s |\n", run.name, run.class_name, run.published,
                          simulated, Percent(error), note);
  }
  absl::StrAppend(&table, "\n| change | published | simulated | difference |\n|---|---|---|---|\n");
  for (const PublishedDelta& delta : runs.deltas) {
    FSDP_ASSIGN_OR_RETURN(const std::string row, DeltaRow(runs, delta));
    absl::StrAppend(&table, row);
  }
  absl::StrAppend(&table, "\n| not modelled | published | why |\n|---|---|---|\n");
  for (const UnmodelledRun& run : runs.not_modelled) {
    absl::StrAppend(&table, "| ", run.name, " | ", run.published, " | ", run.why, " |\n");
  }
  return table;
}

}  // namespace fsdp
