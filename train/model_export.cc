// SPDX-License-Identifier: Apache-2.0
//
// The whole model is gathered on rank 0 in host memory and written from there: one process of another library will load
// an export, so it must fit in one process's memory anyway. config.json is written last, so a directory that has it has
// the weights too.
#include "fsdp/train/model_export.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
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

// OK if `directory` does not exist or holds only an export of this format, so that it may be replaced as a whole.
absl::Status CheckHoldsExportOnly(const std::string& directory, const FormatDriver& driver) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (driver.OwnsFileName(name) || name == kModelConfigName) continue;
    return absl::FailedPreconditionError(absl::StrFormat("%s holds %s, which %s does not: export to a new directory",
                                                         directory, Quote(name), driver.traits().headline));
  }
  return absl::OkStatus();
}

// `state` without its values, which the writer reads through a reader.
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

// If a format's model is one file in a Hugging Face directory, other files there are kept; if the format's directory is
// itself the checkpoint, the directory is replaced.
absl::Status WriteWeights(const std::string& directory, const StateDict& state, const FormatTarget& target,
                          int world_size) {
  const FormatDriver& driver = DriverOf(target);
  const std::string file(driver.traits().model_file);
  // Before anything is written: replacing the directory would delete other files in it.
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
  return AllReduceStatus(model.group(), written);
}

}  // namespace fsdp
