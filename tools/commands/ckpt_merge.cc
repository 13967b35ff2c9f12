// SPDX-License-Identifier: Apache-2.0
//
// ckpt merge is a conversion of a source that has the adapter's changes in it: everything but the adapter is convert's.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/foreign/peft/merge_plan.h"
#include "fsdp/checkpoint/foreign/peft/merged_source.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/source/adapter_config.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/tools/commands/commands.h"
#include "fsdp/tools/commands/conversion.h"

namespace fsdp {
namespace {

// An adapter is its directory, or its file of weights there; both are read with the config in the directory.
absl::Status AddAdapter(const std::string& path, InputPaths& inputs) {
  FSDP_RETURN_IF_ERROR(ProbePath(path).status());
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  const std::string directory = is_directory ? path : SplitPath(path).directory;
  const std::string config = JoinPath(directory, kAdapterConfigName);
  if (!std::filesystem::exists(config, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not an adapter of PEFT: ", config, " is missing"));
  }
  AddCheckpoint(path, inputs);
  inputs.Add(config);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorSource>> Merge(std::unique_ptr<TensorSource> base, const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const AdapterConfig config, ReadAdapterConfig(path));
  // Other kinds may have tensors that no format of this project opens: the reason is the kind.
  FSDP_RETURN_IF_ERROR(CheckCanMerge(config));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> adapter, OpenTensorSource(path));
  return MergeAdapter(std::move(base), std::move(adapter), config);
}

}  // namespace

int RunMerge(const CommandLine& line) {
  const std::string& adapter = line.operands[1];
  const auto prepare = [&](ConvertOptions& options) {
    options.model_only = true;  // an optimizer's state belongs to the weights before
    options.transform = [&](std::unique_ptr<TensorSource> base) -> absl::StatusOr<std::unique_ptr<TensorSource>> {
      absl::StatusOr<std::unique_ptr<TensorSource>> merged = Merge(std::move(base), adapter);
      if (!merged.ok()) return Annotate(merged.status(), adapter);
      return merged;
    };
    return AddAdapter(adapter, options.also_read);
  };
  return RunConversion(line, {.command = "merge",
                              .source = line.operands[0],
                              .destination = line.operands[2],
                              .adapter = adapter,
                              .default_target = SafetensorsTarget(),
                              .prepare = prepare});
}

}  // namespace fsdp
