// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/stream.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"

namespace fsdp {

absl::Status OnStream(const absl::Status& status, const std::string& name) {
  return Annotate(status, absl::StrCat("stream \"", name, "\""));
}

}  // namespace fsdp
