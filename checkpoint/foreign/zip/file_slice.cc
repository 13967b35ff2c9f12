// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/zip/file_slice.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<FileSlice> FileSlice::Whole(const File& file) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
  return FileSlice{&file, 0, nbytes};
}

absl::Status FileSlice::Read(int64_t offset, absl::Span<std::byte> out) const {
  const auto length = static_cast<int64_t>(out.size());
  // The offsets come from the archive; compared so that nothing overflows.
  if (offset < 0 || offset > nbytes || length > nbytes - offset) {
    return absl::DataLossError(
        absl::StrCat(length, " bytes from byte ", offset, " on are wanted, but there are ", nbytes, ": truncated"));
  }
  return file->Read(begin + offset, out);
}

absl::StatusOr<std::string> FileSlice::ReadText(int64_t offset, int64_t length) const {
  // Checked before the string is allocated: `length` is a number in the archive.
  if (length > nbytes) return absl::DataLossError(absl::StrCat(length, " bytes are wanted, but there are ", nbytes));
  std::string text(length, '\0');
  FSDP_RETURN_IF_ERROR(Read(offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

}  // namespace fsdp
