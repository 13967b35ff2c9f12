// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/option_check.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

absl::Status Expect(bool in_range, std::string_view name, double value, const char* expected) {
  if (in_range) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is ", value, ": expected ", expected));
}

}  // namespace

absl::Status CheckFiniteOption(std::string_view name, double value) {
  return Expect(std::isfinite(value), name, value, "a finite number");
}

absl::Status CheckNotNegative(std::string_view name, double value) {
  return Expect(std::isfinite(value) && value >= 0, name, value, "a finite number of at least 0");
}

absl::Status CheckPositive(std::string_view name, double value) {
  return Expect(std::isfinite(value) && value > 0, name, value, "a finite number above 0");
}

absl::Status CheckAbove1(std::string_view name, double value) {
  return Expect(std::isfinite(value) && value > 1, name, value, "a finite number above 1");
}

absl::Status CheckBelow1(std::string_view name, double value) {
  return Expect(value >= 0 && value < 1, name, value, "a number of at least 0 and below 1");
}

absl::Status CheckProperShare(std::string_view name, double value) {
  return Expect(value > 0 && value < 1, name, value, "a number above 0 and below 1");
}

absl::Status CheckAtLeast1(std::string_view name, int value) { return Expect(value >= 1, name, value, "at least 1"); }

}  // namespace fsdp
