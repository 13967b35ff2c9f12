// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Status PickleBudget::Take(PickleValue value, int64_t now, int64_t later) {
  now_ += now;
  later_ += later;
  // The two sums are never in memory together, so the larger one is compared and not the total.
  if (std::max(now_, later_) <= limit_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("byte ", value.place(), " of the pickle: a value too large or too deep to be kept: what is made of ",
                   "the values takes more than ", limit_, " bytes, the limit for a pickle of its size"));
}

}  // namespace fsdp
