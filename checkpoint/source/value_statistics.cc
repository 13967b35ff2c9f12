// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/value_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert.h"

namespace fsdp {
namespace {

constexpr int64_t kTile = 2048;

// The bin of a finite number that is not zero.
int BinOf(uint64_t bits) {
  const int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  return std::clamp(exponent - ValueStatistics::kLowestExponent, 0, ValueStatistics::kBins - 1);
}

void AddTile(const double* values, int64_t count, ValueStatistics& statistics) {
  for (int64_t i = 0; i < count; ++i) {
    const double value = values[i];
    if (!std::isfinite(value)) {
      std::isnan(value) ? ++statistics.nonfinite.nan : ++statistics.nonfinite.inf;
      continue;
    }
    statistics.min = std::min(statistics.min, value);
    statistics.max = std::max(statistics.max, value);
    statistics.sum += value;
    statistics.squares += value * value;
    if (value == 0) {
      ++statistics.zeros;
    } else {
      ++(value < 0 ? statistics.negative : statistics.positive)[BinOf(std::bit_cast<uint64_t>(value))];
    }
  }
  statistics.numel += count;
}

}  // namespace

std::optional<double> ValueStatistics::mean() const {
  if (finite() == 0) return std::nullopt;
  return sum / static_cast<double>(finite());
}

std::optional<double> ValueStatistics::rms() const {
  if (finite() == 0) return std::nullopt;
  return std::sqrt(squares / static_cast<double>(finite()));
}

std::optional<double> ValueStatistics::deviation() const {
  if (finite() == 0) return std::nullopt;
  const double average = *mean();
  return std::sqrt(std::max(0.0, squares / static_cast<double>(finite()) - average * average));
}

void ValueStatistics::Add(const ValueStatistics& other) {
  numel += other.numel;
  nonfinite.Add(other.nonfinite);
  zeros += other.zeros;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  squares += other.squares;
  for (int i = 0; i < kBins; ++i) {
    negative[i] += other.negative[i];
    positive[i] += other.positive[i];
  }
}

absl::Status AddElements(DType dtype, const void* data, int64_t numel, ValueStatistics& statistics) {
  if (IsComplex(dtype)) return AddElements(PartOf(dtype), data, 2 * numel, statistics);
  double tile[kTile];
  for (int64_t at = 0; at < numel; at += kTile) {
    const int64_t count = std::min(kTile, numel - at);
    const std::byte* elements = static_cast<const std::byte*>(data) + at * SizeOf(dtype);
    FSDP_RETURN_IF_ERROR(Convert(dtype, elements, DType::kFloat64, tile, count));
    AddTile(tile, count, statistics);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
