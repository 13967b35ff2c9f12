// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/key_values.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

std::string KeyValues::Describe(const ValuePlace& place) {
  if (place.file.empty()) return "a value in a B+tree node";
  return absl::StrCat(Printable(place.file), ", bytes ", place.offset, " to ", place.offset + place.nbytes);
}

absl::StatusOr<std::string> KeyValues::ReadWhole(const ValuePlace& place, int64_t most) const {
  if (place.nbytes > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Describe(place), ": ", place.nbytes, " bytes, expected at most ", most));
  }
  std::string bytes(place.nbytes, '\0');
  FSDP_RETURN_IF_ERROR(Read(place, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  return bytes;
}

std::optional<std::string_view> ArrayOfMetadataKey(std::string_view key) {
  const size_t slash = key.rfind('/');
  if (slash == key.npos || slash == 0) return std::nullopt;
  const std::string_view file = key.substr(slash + 1);
  if (file != ".zarray" && file != "zarr.json") return std::nullopt;
  return key.substr(0, slash);
}

}  // namespace fsdp
