// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/blob_gather.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// A blob is empty for OK, else one byte of code and the message.
absl::Status AgreeOn(const BlobGather& gather, const absl::Status& mine) {
  std::string blob;
  if (!mine.ok()) {
    blob = absl::StrCat(std::string(1, static_cast<char>(mine.code())), mine.message());
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(blob));
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (!blobs[r].empty()) {
      return absl::Status(static_cast<absl::StatusCode>(blobs[r][0]),
                          absl::StrCat("rank ", r, " of ", blobs.size(), ": ", blobs[r].substr(1)));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
