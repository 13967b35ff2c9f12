// SPDX-License-Identifier: Apache-2.0
//
// The whole model is gathered on rank 0 in host memory and written from there: an export is what one process of another
// library loads, so it must fit in one process's memory anyway. config.json is written last, so that a directory which
// has it has the weights too.
#include "fsdp/train/model_export.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"

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

// OK when `directory` does not exist or holds an export of this format alone, so that it may be replaced as a whole.
absl::Status CheckHoldsExportOnly(const std::string& directory, const FormatDriver& driver) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (driver.OwnsFileName(name) || name == kModelConfigName) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s holds \"%s\", which %s does not: export to a new directory", directory, name, driver.traits().headline));
  }
  return absl::OkStatus();
}

// `state` without its values, which the writer pulls from a reader.
FormatContents ContentsOf(const StateDict& state, int world_size) {
  FormatContents contents = {.world_size = world_size};
  for (const auto& [key, value] : state.entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      contents.state.Set(key, *text);
      continue;
    }
    ShardedTensor described;
    described.dtype = std::get<ShardedTensor>(value).dtype;
    described.shape = std::get<ShardedTensor>(value).shape;
    contents.state.Set(key, std::move(described));
  }
  contents.state.aliases = state.aliases;
  return contents;
}

// A format whose model is one file in a directory of Hugging Face's leaves other files there alone; a format whose
// directory is itself the checkpoint replaces the directory.
absl::Status WriteWeights(const std::string& directory, const StateDict& state, const FormatTarget& target,
                          int world_size) {
  const FormatDriver& driver = DriverOf(target);
  const std::string file(driver.traits().model_file);
  if (file.empty()) FSDP_RETURN_IF_ERROR(CheckHoldsExportOnly(directory, driver));
  FSDP_RETURN_IF_ERROR(MakeDirectories(PosixFileSystem(), file.empty() ? SplitPath(directory).directory : directory));
  const std::unique_ptr<FormatWriter> writer = MakeWriter(target);
  FormatContents contents = ContentsOf(state, world_size);
  FSDP_RETURN_IF_ERROR(writer->Fit(contents).status());
  return writer->Write(file.empty() ? directory : JoinPath(directory, file), contents, ReadFromMemory(state),
                       {.overwrite = true});
}

}  // namespace

absl::Status ExportModel(const std::string& directory, const CausalLmConfig& config, FullyShardedDataParallel& model,
                         const FormatTarget& target) {
  const StateDictTypeGuard guard(model, FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true});
  FSDP_ASSIGN_OR_RETURN(const StateDict state, model.GetStateDict());
  absl::Status written;
  if (model.group().rank() == 0) {
    written = WriteWeights(directory, state, target, model.group().size());
    if (written.ok()) written = WriteText(JoinPath(directory, kModelConfigName), CausalLmConfigJson(config));
  }
  return AgreeOn(model.group(), written);
}

}  // namespace fsdp
