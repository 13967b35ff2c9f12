// SPDX-License-Identifier: Apache-2.0
//
// One pass over the elements, converted to float64 tile by tile. Mean and deviation come from the sums of values and of
// squares, which add up over pieces and threads. The variance loses digits when the mean is much larger than the
// deviation; for a report of weights, whose mean is near 0, it is accurate enough.
#include "fsdp/checkpoint/source/value_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr int64_t kTile = 2048;

// The bin of the finite float64 with these bits, which is not zero. The exponent is taken from the bits: log2 would be
// slower and could round a value just below a power of two up to it. Subnormals land in the first bin.
int BinOf(uint64_t bits) {
  const int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  return std::clamp(exponent - ValueStatistics::kLowestExponent, 0, ValueStatistics::kBins - 1);
}

// Adds up `count` values that were converted to float64, some of which are not finite.
void AddEach(const double* values, int64_t count, ValueStatistics& statistics) {
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
}

// The same for many finite values, several times as fast: sums in independent lanes, and counts by the sign and
// exponent bits, which Finish puts into bins.
class FiniteSums {
 public:
  // Fewer values are faster one by one.
  static constexpr int64_t kWorthwhile = 16 * 1024;

  // False, and nothing is added, if some value or sum is not finite.
  bool Add(const double* values, int64_t count, ValueStatistics& statistics) {
    double sum[kLanes] = {}, squares[kLanes] = {}, low[kLanes], high[kLanes];
    std::fill_n(low, kLanes, statistics.min);
    std::fill_n(high, kLanes, statistics.max);
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const double value = values[i + lane];
        sum[lane] += value;
        squares[lane] += value * value;
        low[lane] = value < low[lane] ? value : low[lane];
        high[lane] = value > high[lane] ? value : high[lane];
      }
    }
    for (int lane = 1; lane < kLanes; ++lane) {
      sum[0] += sum[lane];
      squares[0] += squares[lane];
    }
    // NaN and infinity propagate into the sums, so one test at the end replaces a test per value.
    if (!std::isfinite(sum[0]) || !std::isfinite(squares[0])) return false;
    statistics.sum += sum[0];
    statistics.squares += squares[0];
    statistics.min = *std::min_element(low, low + kLanes);
    statistics.max = *std::max_element(high, high + kLanes);
    for (int64_t i = 0; i < whole; ++i) {
      const auto bits = std::bit_cast<uint64_t>(values[i]);
      ++counts_[i % 2][bits >> 52];
      zeros_[bits >> 63] += bits << 1 == 0;
    }
    AddEach(values + whole, count - whole, statistics);
    return true;
  }

  void Finish(ValueStatistics& statistics) {
    // Zeros have the exponent of the smallest numbers.
    for (int sign = 0; sign < 2; ++sign) {
      ValueStatistics::Histogram& bins = sign == 0 ? statistics.positive : statistics.negative;
      for (uint64_t exponent = 0; exponent < kExponents; ++exponent) {
        const uint64_t at = sign * kExponents + exponent;
        bins[BinOf(exponent << 52)] += counts_[0][at] + counts_[1][at];
      }
      bins[0] -= zeros_[sign];
      statistics.zeros += zeros_[sign];
    }
  }

 private:
  static constexpr int kLanes = 8;
  static constexpr uint64_t kExponents = 2048;

  // Two tables, since neighbours often have the same exponent, and incrementing the same counter twice would wait.
  std::array<std::array<int64_t, 2 * kExponents>, 2> counts_ = {};
  std::array<int64_t, 2> zeros_ = {};
};

struct Piece {
  const StateKey* key;
  DType dtype;
  bool is_distinct;
  Interval interval;
};

// Each element as its two numbers.
absl::Status AddPackedElements(DType dtype, const void* data, int64_t numel, ValueStatistics& statistics) {
  double tile[kTile];
  for (int64_t at = 0; at < numel; at += kTile / 2) {
    const int64_t count = std::min(kTile / 2, numel - at);
    UnpackFloats(dtype, static_cast<const std::byte*>(data) + at * SizeOf(dtype), tile, count);
    FSDP_RETURN_IF_ERROR(AddElements(DType::kFloat64, tile, 2 * count, statistics));
  }
  return absl::OkStatus();
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
  // Rounding can make the variance of equal values slightly negative.
  return std::sqrt(std::max(0.0, squares / static_cast<double>(finite()) - average * average));
}

void ValueStatistics::Add(const ValueStatistics& other) {
  numel += other.numel;
  unread += other.unread;
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
  if (IsPacked(dtype)) return AddPackedElements(dtype, data, numel, statistics);
  double tile[kTile];
  std::unique_ptr<FiniteSums> sums;
  if (numel >= FiniteSums::kWorthwhile) sums = std::make_unique<FiniteSums>();
  for (int64_t at = 0; at < numel; at += kTile) {
    const int64_t count = std::min(kTile, numel - at);
    const std::byte* elements = static_cast<const std::byte*>(data) + at * SizeOf(dtype);
    FSDP_RETURN_IF_ERROR(Convert(dtype, elements, DType::kFloat64, tile, count));
    if (sums == nullptr || !sums->Add(tile, count, statistics)) AddEach(tile, count, statistics);
  }
  if (sums != nullptr) sums->Finish(statistics);
  statistics.numel += numel;
  return absl::OkStatus();
}

// Each task sums up its piece separately and takes the lock only to add the result. The order in which pieces are added
// depends on timing, and so do the last digits of `sum` and `squares`.
absl::StatusOr<std::map<StateKey, ValueStatistics>> ReadStatistics(const TensorSource& source,
                                                                   const StatisticsOptions& options) {
  std::map<StateKey, ValueStatistics> statistics;
  std::vector<Piece> pieces;
  int64_t bytes_total = 0;
  ReadBound bound(source);
  std::vector<const StateKey*> keys;                            // of the tensors, in their order
  std::vector<std::pair<const StateKey*, int64_t>> same_views;  // ReadExtent::same_as
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const ReadExtent extent = bound.Of(key, *tensor);
    keys.push_back(&key);
    if (extent.same_as >= 0) same_views.emplace_back(&key, extent.same_as);
    statistics[key].unread = extent.left_out;
    for (const Interval& interval : source.Pieces(key, {0, extent.numel})) {
      pieces.push_back({&key, tensor->dtype, extent.is_distinct, interval});
    }
    bytes_total += extent.numel * SizeOf(tensor->dtype);
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options.io_threads, "statistics"));
  std::mutex mutex;
  int64_t bytes_done = 0;
  FSDP_RETURN_IF_ERROR(pool->ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t i) -> absl::Status {
    const Piece& piece = pieces[i];
    const int64_t nbytes = piece.interval.size() * SizeOf(piece.dtype);
    const std::unique_ptr<std::byte[]> elements(new std::byte[nbytes]);
    FSDP_RETURN_IF_ERROR(ReadExtent{piece.is_distinct}.Read(source, *piece.key, piece.interval, elements.get()));
    ValueStatistics part;
    FSDP_RETURN_IF_ERROR(AddElements(piece.dtype, elements.get(), piece.interval.size(), part));
    const std::lock_guard<std::mutex> lock(mutex);
    statistics.at(*piece.key).Add(part);
    bytes_done += nbytes;
    if (options.progress) options.progress(bytes_done, bytes_total);
    return absl::OkStatus();
  }));
  for (const auto& [key, same_as] : same_views) statistics.at(*key) = statistics.at(*keys[same_as]);
  return statistics;
}

}  // namespace fsdp
