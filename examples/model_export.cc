// SPDX-License-Identifier: Apache-2.0
#include "examples/model_export.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/payload_reader.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/staged_path.h"

namespace fsdp {
namespace {

absl::Status WriteText(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(StagedPath staged, StagedPath::Create(path, {.directory = false, .overwrite = true}));
  std::ofstream stream(staged.path(), std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) return absl::UnavailableError(absl::StrFormat("%s: cannot be written", path));
  return staged.Commit();
}

absl::Status WriteDirectory(const std::string& directory, const Gpt2Config& config, const StateDict& state) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be made: %s", directory, error.message()));
  SafetensorsOptions options;
  options.overwrite = true;
  RETURN_IF_ERROR(WriteSafetensors(directory + "/model.safetensors", state, ReadFromMemory(state), options));
  return WriteText(directory + "/config.json", Gpt2ConfigJson(config));
}

}  // namespace

absl::Status ExportModel(const std::string& directory, const Gpt2Config& config, FullyShardedDataParallel& model) {
  const StateDictTypeGuard guard(model, FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true});
  ASSIGN_OR_RETURN(const StateDict state, model.GetStateDict());
  absl::Status written;
  if (model.group().rank() == 0) written = WriteDirectory(directory, config, state);
  return AgreeOn(model.group(), written);
}

}  // namespace fsdp
