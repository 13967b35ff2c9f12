// SPDX-License-Identifier: Apache-2.0
//
// Checks of the ranges of numbers in option structs, with one wording of the error. Each function returns OK if the
// number is in its range, and else kInvalidArgument: "lr is -1: expected a finite number of at least 0". NaN is not in
// any range.
#ifndef FSDP_BASE_OPTION_CHECK_H_
#define FSDP_BASE_OPTION_CHECK_H_

#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

absl::Status CheckFiniteOption(std::string_view name, double value);
absl::Status CheckNotNegative(std::string_view name, double value);  // at least 0, and finite
absl::Status CheckPositive(std::string_view name, double value);     // above 0, and finite
absl::Status CheckAbove1(std::string_view name, double value);       // and finite
absl::Status CheckBelow1(std::string_view name, double value);       // in [0, 1)
absl::Status CheckProperShare(std::string_view name, double value);  // in (0, 1)
absl::Status CheckAtLeast1(std::string_view name, int value);

}  // namespace fsdp

#endif  // FSDP_BASE_OPTION_CHECK_H_
