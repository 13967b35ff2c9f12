// SPDX-License-Identifier: Apache-2.0
#include "examples/model_export.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/file_system.h"
#include "checkpoint/payload_reader.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/staged_path.h"

namespace fsdp {
namespace {

absl::Status WriteText(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                   StagedPath::CreateFile(PosixFileSystem(), path, {.overwrite = true}));
  RETURN_IF_ERROR(
      staged->file().Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  RETURN_IF_ERROR(staged->file().Sync());
  return staged->Commit();
}

absl::Status WriteDirectory(const std::string& directory, const Gpt2Config& config, const StateDict& state) {
  RETURN_IF_ERROR(MakeDirectories(PosixFileSystem(), directory));
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
