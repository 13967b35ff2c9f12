// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/output_file.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {

// A StagedPath replaces anything of that name, even a directory with all its contents, so check first.
absl::Status WriteOutputFile(std::string_view text, const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is ", std::filesystem::is_directory(status) ? "a directory" : "not a file",
                     ", expected a file or a name that is free; choose another place for it"));
  }
  StagedPathOptions options;
  options.overwrite = true;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(PosixFileSystem(), path, options));
  FSDP_RETURN_IF_ERROR(
      staged->file().Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  FSDP_RETURN_IF_ERROR(staged->file().Sync());
  return staged->Commit();
}

}  // namespace fsdp
