// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/model_export.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/torch/dcp/dcp_writer.h"
#include "fsdp/checkpoint/torch/pt/torch_source.h"
#include "fsdp/checkpoint/torch/pt/torch_writer.h"

namespace fsdp {
namespace {

absl::Status WriteText(const std::string& path, const std::string& text) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(PosixFileSystem(), path, {.overwrite = true}));
  FSDP_RETURN_IF_ERROR(
      staged->file().Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  FSDP_RETURN_IF_ERROR(staged->file().Sync());
  return staged->Commit();
}

// OK when `directory` is not there or holds an export of this kind alone, so that it may be replaced as a whole.
absl::Status CheckHoldsDcpOnly(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (name == kDcpMetadataName || name == "config.json" || it->path().extension() == ".distcp") continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("%s holds \"%s\", which a DCP directory does not: export to a new directory", directory, name));
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(const std::string& directory, const StateDict& state, ExportFormat format, int world_size) {
  if (format == ExportFormat::kDcp) {
    FSDP_RETURN_IF_ERROR(CheckHoldsDcpOnly(directory));
    const PathParts parts = SplitPath(directory);
    FSDP_RETURN_IF_ERROR(MakeDirectories(PosixFileSystem(), parts.directory));
    TorchWriteOptions options;
    options.overwrite = true;
    return WriteDcpDirectory(directory, state, world_size, ReadFromMemory(state), options);
  }
  FSDP_RETURN_IF_ERROR(MakeDirectories(PosixFileSystem(), directory));
  if (format == ExportFormat::kTorch) {
    TorchWriteOptions options;
    options.overwrite = true;
    return WriteTorchFile(JoinPath(directory, kTorchModelName), state, ReadFromMemory(state), options);
  }
  SafetensorsOptions options;
  options.overwrite = true;
  return WriteSafetensors(JoinPath(directory, kHuggingFaceModelName), state, ReadFromMemory(state), options);
}

}  // namespace

absl::StatusOr<ExportFormat> ParseExportFormat(std::string_view name) {
  if (name == "safetensors") return ExportFormat::kSafetensors;
  if (name == "torch") return ExportFormat::kTorch;
  if (name == "dcp") return ExportFormat::kDcp;
  return absl::InvalidArgumentError(
      absl::StrFormat("--export_format=%s, expected safetensors, torch or dcp", std::string(name)));
}

absl::Status ExportModel(const std::string& directory, const CausalLmConfig& config, FullyShardedDataParallel& model,
                         ExportFormat format) {
  const StateDictTypeGuard guard(model, FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true});
  FSDP_ASSIGN_OR_RETURN(const StateDict state, model.GetStateDict());
  absl::Status written;
  if (model.group().rank() == 0) {
    written = WriteWeights(directory, state, format, model.group().size());
    if (written.ok()) written = WriteText(JoinPath(directory, "config.json"), CausalLmConfigJson(config));
  }
  return AgreeOn(model.group(), written);
}

}  // namespace fsdp
