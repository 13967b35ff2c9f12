// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/page/page_file.h"

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {

absl::Status WritePageFile(std::string_view page, const std::string& path) {
  StagedPathOptions options;
  options.overwrite = true;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(PosixFileSystem(), path, options));
  FSDP_RETURN_IF_ERROR(
      staged->file().Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(page.data()), page.size())));
  FSDP_RETURN_IF_ERROR(staged->file().Sync());
  return staged->Commit();
}

}  // namespace fsdp
