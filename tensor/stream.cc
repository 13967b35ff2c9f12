// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/stream.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Status OnStream(const absl::Status& status, const std::string& name) {
  absl::Status named(status.code(), absl::StrCat("stream \"", name, "\": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

}  // namespace fsdp
