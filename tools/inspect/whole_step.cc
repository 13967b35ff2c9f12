// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/whole_step.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/checkpoint_manifest.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

absl::StatusOr<Manifest> ReadWholeStep(const std::string& root, const std::string& name) {
  const std::string path = JoinPath(root, name);
  FSDP_ASSIGN_OR_RETURN(Manifest manifest, ReadCheckpointManifest(path));
  FSDP_RETURN_IF_ERROR(CheckFilesPresent(PosixFileSystem(), path, manifest));
  const std::string recorded = StepName(manifest.save.step);
  if (manifest.save.has_step && (name == recorded || name == manifest.save.name)) return manifest;
  return absl::DataLossError(
      absl::StrCat("its manifest is of ", manifest.save.StepText(), ", expected the step of its name",
                   manifest.save.has_step ? absl::StrCat("; as ", recorded, " it would be a step") : std::string()));
}

}  // namespace fsdp
