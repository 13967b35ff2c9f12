// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/object_store.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status CheckObjectKey(absl::string_view key) {
  const auto is_part = [](absl::string_view part) {
    return !part.empty() && part != "." && part != ".." &&
           std::none_of(part.begin(), part.end(), [](char c) { return absl::ascii_iscntrl(c); });
  };
  if (key.empty()) return absl::OkStatus();
  for (const absl::string_view part : absl::StrSplit(absl::StripSuffix(key, "/"), '/')) {
    if (is_part(part)) continue;
    return absl::InvalidArgumentError(absl::StrCat("key ", Quote(std::string(key)), " of an object has the part ",
                                                   Quote(std::string(part)),
                                                   ", expected no empty, . or .. part and no control characters"));
  }
  return absl::OkStatus();
}

ObjectBody FileBody(const File& file, int64_t nbytes) {
  return {nbytes, [&file](int64_t offset, absl::Span<std::byte> out) { return file.Read(offset, out); }};
}

ObjectBody TextBody(absl::string_view text) {
  const auto read = [text](int64_t offset, absl::Span<std::byte> out) {
    std::memcpy(out.data(), text.data() + offset, out.size());
    return absl::OkStatus();
  };
  return {static_cast<int64_t>(text.size()), read};
}

absl::StatusOr<std::string> GetObject(ObjectStore& store, const std::string& key, int64_t max_bytes) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, store.Size(key));
  // Before memory is reserved, since the store is not trusted.
  if (nbytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(store.UrlOf(key), ": ", nbytes, " bytes, expected at most ", max_bytes));
  }
  std::string bytes;
  bytes.reserve(nbytes);
  // If the object is replaced by a shorter one after Size, Get returns kOutOfRange.
  FSDP_RETURN_IF_ERROR(store.Get(key, {0, nbytes}, [&](absl::Span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return absl::OkStatus();
  }));
  return bytes;
}

}  // namespace fsdp
