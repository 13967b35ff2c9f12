// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/format/file_digests.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_scan.h"

namespace fsdp {

absl::Status CheckFileDigests(const File& file, const StoredFile& stored, ThreadPool& pool) {
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size != stored.nbytes) {
    return absl::DataLossError(absl::StrCat(stored.name, " has ", size, " bytes, expected ", stored.nbytes));
  }
  FileScanner scanner;
  scanner.open = [&](int) { return std::shared_ptr<const File>(std::shared_ptr<const File>(), &file); };
  scanner.rest = [&](int, const absl::StatusOr<Digest>& digest) -> absl::Status {
    FSDP_RETURN_IF_ERROR(digest.status());
    if (*digest == stored.rest_digest) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(stored.name, ", bytes outside of payload: digest ", digest->ToHex(),
                                            " != recorded ", stored.rest_digest.ToHex()));
  };
  scanner.block = [&](const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes) -> absl::Status {
    FSDP_RETURN_IF_ERROR(bytes.status());
    const Digest digest = DigestOf(absl::MakeConstSpan(*bytes, block.range.nbytes));
    const Digest& recorded = stored.extents[block.extent].digests[block.block];
    if (digest == recorded) return absl::OkStatus();
    return absl::DataLossError(
        DamagedBlock(stored.name, block.range, absl::StrCat("block ", block.block), digest, recorded));
  };
  return ScanFiles({&stored}, pool, scanner);
}

}  // namespace fsdp
