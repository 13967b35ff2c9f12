// SPDX-License-Identifier: Apache-2.0
//
// absl::Status has no way to change its message, so both functions copy code and payloads into a new one.
#include "fsdp/base/annotate.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status named(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

absl::Status Annotate(const absl::Status& status, absl::string_view place) {
  return status.ok() ? status : WithMessage(status, absl::StrCat(place, ": ", status.message()));
}

}  // namespace fsdp
