// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/incompatible_keys.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {

absl::Status IncompatibleKeys::ToStatus(std::string_view subject) const {
  if (empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(subject), " does not fit the model; missing: [",
                                                 absl::StrJoin(missing_keys, ", "), "]; unexpected: [",
                                                 absl::StrJoin(unexpected_keys, ", "), "]"));
}

}  // namespace fsdp
