// SPDX-License-Identifier: Apache-2.0
//
// Only the two drivers of our own format are tried here. The table of formats would link the readers of all other
// formats. source/load.cc does the loading.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/checkpoint_driver.h"
#include "fsdp/checkpoint/native/checkpoint_manifest.h"
#include "fsdp/checkpoint/native/native_checkpoint.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/load_together.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {
namespace {

absl::StatusOr<const FormatDriver*> FindOurs(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const PathProbe probe, ProbePath(path));
  for (const FormatDriver* driver : {&CheckpointDriver(), &CheckpointRootDriver()}) {
    FSDP_ASSIGN_OR_RETURN(const bool is_known, driver->Recognises(probe));
    if (is_known) return driver;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is not a checkpoint of ours: expected ", std::string(CheckpointDriver().traits().in_directory), " or ",
      std::string(CheckpointRootDriver().traits().in_directory), " in it; LoadCheckpoint loads other formats"));
}

}  // namespace

absl::Status LoadNativeCheckpoint(const std::string& path, StateDict& wanted, const LoadOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckLoadMemory(wanted, options));
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindOurs(path));
  const TensorSourceOptions source_options = SourceOptionsFor(wanted, options);
  const absl::StatusOr<std::unique_ptr<TensorSource>> source = driver->OpenChecked(path, source_options);
  if (!source.ok()) return NameLoadOptions(source.status());
  return LoadFrom(**source, path, wanted, options);
}

absl::Status LoadNativeCheckpoint(const std::string& path, StateDict& wanted, ProcessGroup& group,
                                  const LoadOptions& options) {
  return LoadTogether(path, wanted, group, options, FindOurs);
}

absl::StatusOr<int64_t> NativeCheckpointStep(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const Manifest manifest, ReadCheckpointManifest(path));
  if (manifest.save.has_step) return manifest.save.step;
  return absl::InvalidArgumentError(absl::StrCat(path, " does not record its step; only its weights can be read, or ",
                                                 "convert it with ConvertOptions::step, and read the result"));
}

}  // namespace fsdp
