// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/run_outputs.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/storage/input_paths.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/train/model_export.h"
#include "fsdp/train/sharded_language_model.h"

namespace fsdp {
namespace {

// A file may be one of several parts of a model. The load reports a path that does not open.
void AddModel(const std::string& path, const TrainOptions& options, InputPaths& inputs) {
  AddCheckpoint(path, inputs);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  const absl::StatusOr<std::unique_ptr<TensorSource>> source =
      OpenTensorSource(path, {.model_only = true, .skip_links = true, .map = options.map});
  if (source.ok()) AddSource(**source, inputs);
}

// --resume=auto reads steps of --checkpoint_dir, to which the run also saves: each step has its own name.
InputPaths InputsOf(const TrainOptions& options, const TokenData& data) {
  InputPaths inputs;
  for (const std::string& file : data.files()) inputs.Add(file);
  inputs.Add(ModelConfigPath(options));
  inputs.Add(options.flat_layout);
  AddModel(options.init_from, options, inputs);
  // Only an explicit path is an input; see above for auto.
  if (options.resume.kind == ResumeChoice::Kind::kPath) AddModel(options.resume.path, options, inputs);
  return inputs;
}

absl::Status CheckFlag(const char* flag, const std::string& path, const InputPaths& inputs,
                       const OutputOptions& options) {
  if (path.empty()) return absl::OkStatus();
  return Annotate(CheckOutput(path, inputs, options), absl::StrFormat("--%s=%s", flag, path));
}

// An export replaces files in the directory, or the directory itself, so it must not hold another model in another
// form: a reader could not tell which one is meant.
absl::Status CheckExport(const TrainOptions& options, const InputPaths& inputs) {
  const std::string& directory = options.export_to;
  const std::optional<FormatTarget> target = FindTarget(options.export_format);
  if (directory.empty() || !target) return absl::OkStatus();
  const FormatDriver& driver = DriverOf(*target);
  const std::string model_file(driver.traits().model_file);
  const auto check = [&](const std::string& path, const OutputOptions& output) {
    return Annotate(CheckOutput(path, inputs, output), absl::StrFormat("--export=%s", directory));
  };
  FSDP_RETURN_IF_ERROR(check(directory, {.kind = model_file.empty() ? OutputKind::kDirectory : OutputKind::kFile,
                                         .root = options.checkpoint_dir}));
  // A former export in the same form is replaced, not an obstacle.
  FSDP_ASSIGN_OR_RETURN(const bool is_replaced,
                        model_file.empty() ? driver.IsCheckpointDirectory(directory) : HasEntry(directory, model_file));
  const OutputOptions member = {.own_directory = is_replaced ? directory : "", .root = options.checkpoint_dir};
  FSDP_RETURN_IF_ERROR(check(JoinPath(directory, kModelConfigName), member));
  return model_file.empty() ? absl::OkStatus() : check(JoinPath(directory, model_file), member);
}

}  // namespace

absl::Status CheckRunOutputs(const TrainOptions& options, const TokenData& data) {
  const InputPaths inputs = InputsOf(options, data);
  // Metrics and events may be next to a model's files, under names that its format does not use.
  const std::string& steps = options.checkpoint_dir;
  const OutputOptions file = {.root = steps, .may_lie_beside_models = true};
  const OutputOptions root = {.kind = OutputKind::kRoot, .root = steps, .may_lie_beside_models = true};
  FSDP_RETURN_IF_ERROR(CheckFlag("metrics", options.metrics, inputs, file));
  FSDP_RETURN_IF_ERROR(CheckFlag("tensorboard", options.tensorboard, inputs, root));
  FSDP_RETURN_IF_ERROR(CheckFlag("trace", options.trace, inputs, file));
  FSDP_RETURN_IF_ERROR(CheckFlag("checkpoint_dir", options.checkpoint_dir, inputs, root));
  return CheckExport(options, inputs);
}

absl::Status CheckReplacedSteps(const TrainOptions& options, const std::vector<std::string>& steps) {
  InputPaths inputs;
  AddCheckpoint(options.init_from, inputs);
  for (const std::string& step : steps) {
    const std::string path = JoinPath(options.checkpoint_dir, step);
    FSDP_RETURN_IF_ERROR(Annotate(CheckOutput(path, inputs, {.kind = OutputKind::kCheckpoint}), "--overwrite"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
