// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/bandwidth.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fsdp {

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"bit", 1.0 / 8}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {"tbit", 1e12 / 8},
      {"B/s", 1},       {"kB/s", 1e3},     {"MB/s", 1e6},     {"GB/s", 1e9},     {"TB/s", 1e12},
  };
  // A sign, an exponent or a blank is not part of the number, and so makes the unit unknown.
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string_view unit = end == std::string_view::npos ? "" : text.substr(end);
  double number = 0;
  const bool is_number = absl::SimpleAtod(std::string(text.substr(0, end)), &number) && std::isfinite(number);
  for (const auto& [name, bytes] : kUnits) {
    if (unit == name && is_number && number > 0) return number * bytes;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "bandwidth \"", std::string(text), "\": expected a number above 0 with a unit, such as 400gbit or 2.5GB/s"));
}

}  // namespace fsdp
