// SPDX-License-Identifier: Apache-2.0
//
// Elements are compared as float64, into which every dtype except 64-bit integers converts exactly; their distances are
// computed in integers. Work proceeds tile by tile, so that converted elements stay in the cache. Most tiles of two
// checkpoints are bitwise equal: memcmp finds that, and only the sums for the cosine remain.
//
// ULPs: the codes of IEEE floats of one sign are ordered like their values, so with negative codes reflected, the
// number of representable values between two floats is the difference of two integers (Rank); see B. Dawson, "Comparing
// Floating Point Numbers", 2012.
#include "fsdp/checkpoint/source/value_difference.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstring>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// Elements of a tile: two tiles of float64 stay in the first-level cache.
constexpr int64_t kTile = 1024;

const std::byte* At(const Elements& elements, int64_t index) {
  return static_cast<const std::byte*>(elements.data) + index * SizeOf(elements.dtype);
}

template <typename Integer>
Integer Load(const std::byte* at) {
  Integer value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Maps a float with the code `Bits` to an integer, so that neighbouring values differ by one, and -0 and 0 are equal.
template <typename Bits>
uint64_t Rank(const std::byte* at) {
  constexpr uint64_t kSign = uint64_t{1} << (8 * sizeof(Bits) - 1);
  const uint64_t code = Load<Bits>(at);
  return (code & kSign) != 0 ? kSign - (code & ~kSign) : kSign + code;
}

uint64_t RankOf(int64_t size, const std::byte* at) {
  switch (size) {
    case 1:
      return Rank<uint8_t>(at);
    case 2:
      return Rank<uint16_t>(at);
    case 4:
      return Rank<uint32_t>(at);
    default:
      return Rank<uint64_t>(at);
  }
}

bool IsPairOfNumbers(DType dtype) { return IsComplex(dtype) || IsPacked(dtype); }

absl::Status ToPairs(const Elements& elements, int64_t index, int64_t count, double* out) {
  if (!IsPacked(elements.dtype)) return Convert(elements.dtype, At(elements, index), DType::kComplex128, out, count);
  UnpackFloats(elements.dtype, At(elements, index), out, count);
  return absl::OkStatus();
}

// |a - b|, which float64 would round for large integers.
template <typename Integer>
double Distance(const std::byte* a, const std::byte* b) {
  const auto x = Load<Integer>(a);
  const auto y = Load<Integer>(b);
  return static_cast<double>(x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                   : static_cast<uint64_t>(y) - static_cast<uint64_t>(x));
}

// Compares two runs of elements and adds the result to a ValueDifference.
class Comparison {
 public:
  Comparison(const Elements& a, const Elements& b, const Tolerance& tolerance, ValueDifference& difference)
      : a_(a),
        b_(b),
        tolerance_(tolerance),
        difference_(difference),
        has_ulps_(a.dtype == b.dtype && IsFloatingPoint(a.dtype) &&
                  a.dtype != DType::kFloat8E8M0FNU),  // which has no sign
        rounds_(a.dtype != b.dtype && IsFloatingPoint(a.dtype) && IsFloatingPoint(b.dtype)),
        wide_(a.dtype == b.dtype && (a.dtype == DType::kInt64 || a.dtype == DType::kUInt64) ? a.dtype
                                                                                            : DType::kFloat64) {
    if (has_ulps_ && !difference_.ulps) difference_.ulps = 0;
  }

  absl::Status Run(int64_t begin, int64_t numel) {
    difference_.numel += numel;
    const bool are_pairs = IsPairOfNumbers(a_.dtype) || IsPairOfNumbers(b_.dtype);
    return are_pairs ? RunPairs(begin, numel) : RunReal(begin, numel);
  }

 private:
  absl::Status RunReal(int64_t begin, int64_t numel) {
    for (int64_t at = 0; at < numel; at += kTile) {
      const int64_t count = std::min(kTile, numel - at);
      FSDP_RETURN_IF_ERROR(Convert(a_.dtype, At(a_, at), DType::kFloat64, x_, count));
      if (a_.dtype == b_.dtype && std::memcmp(At(a_, at), At(b_, at), count * SizeOf(a_.dtype)) == 0) {
        AddEqual(count);
        continue;
      }
      FSDP_RETURN_IF_ERROR(Convert(b_.dtype, At(b_, at), DType::kFloat64, y_, count));
      if (rounds_) {
        FSDP_RETURN_IF_ERROR(Round(x_, b_.dtype, rounded_x_, count));
        FSDP_RETURN_IF_ERROR(Round(y_, a_.dtype, rounded_y_, count));
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t changed = difference_.changed;
        AddPair(at + i, begin + at + i, x_[i], y_[i]);
        if (difference_.changed != changed && !IsRounded(i)) ++difference_.beyond_rounding;
      }
    }
    return absl::OkStatus();
  }

  // Converts `count` numbers to `dtype` and back.
  absl::Status Round(const double* in, DType dtype, double* out, int64_t count) {
    FSDP_RETURN_IF_ERROR(Convert(DType::kFloat64, in, dtype, coded_, count));
    return Convert(dtype, coded_, DType::kFloat64, out, count);
  }

  // A number that overflows to infinity is lost, not rounded.
  bool IsRounded(int64_t i) const {
    return rounds_ && std::isfinite(x_[i]) && std::isfinite(y_[i]) &&
           (rounded_x_[i] == y_[i] || rounded_y_[i] == x_[i]);
  }

  // A tile holds half as many elements of two numbers. A packed dtype is compared like a complex one:
  // they differ if one of the numbers does.
  absl::Status RunPairs(int64_t begin, int64_t numel) {
    for (int64_t at = 0; at < numel; at += kTile / 2) {
      const int64_t count = std::min(kTile / 2, numel - at);
      FSDP_RETURN_IF_ERROR(ToPairs(a_, at, count, x_));
      FSDP_RETURN_IF_ERROR(ToPairs(b_, at, count, y_));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t changed = difference_.changed;
        AddComplexPair(begin + at + i, {x_[2 * i], x_[2 * i + 1]}, {y_[2 * i], y_[2 * i + 1]});
        difference_.beyond_rounding += difference_.changed - changed;
      }
    }
    return absl::OkStatus();
  }

  // Adds `count` elements of x_ that are bitwise equal on both sides.
  void AddEqual(int64_t count) {
    double sums[4] = {};  // four chains: in a single chain every addition would wait for the previous one
    int64_t nans = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double square = x_[i] * x_[i];
      sums[i % 4] += std::isfinite(x_[i]) ? square : 0;
      nans += x_[i] != x_[i];
    }
    const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    difference_.dot += sum;
    difference_.squares_a += sum;
    difference_.squares_b += sum;
    difference_.nan_both += nans;
  }

  void AddPair(int64_t offset, int64_t index, double x, double y) {
    const bool x_is_nan = std::isnan(x);
    const bool y_is_nan = std::isnan(y);
    if (x_is_nan && y_is_nan) {
      ++difference_.nan_both;
      return;
    }
    // One infinity would make all three sums infinite, and the cosine of a whole tensor absent.
    if (std::isfinite(x) && std::isfinite(y)) {
      difference_.dot += x * y;
      difference_.squares_a += x * x;
      difference_.squares_b += y * y;
      difference_.squares_difference += (x - y) * (x - y);
    }
    const double distance = DistanceOf(offset, x, y);
    // Both conditions: large 64-bit integers can be equal as float64 and still differ.
    if (x == y && distance == 0) return;
    AddChange(index, x_is_nan || y_is_nan, distance, std::abs(x), std::abs(y));
    if (has_ulps_ && !x_is_nan && !y_is_nan) {
      const int64_t size = SizeOf(a_.dtype);
      const uint64_t p = RankOf(size, At(a_, offset));
      const uint64_t q = RankOf(size, At(b_, offset));
      difference_.ulps = std::max(*difference_.ulps, p > q ? p - q : q - p);
    }
  }

  // `x` and `y` are the magnitudes of the two elements.
  void AddChange(int64_t index, bool one_is_nan, double distance, double x, double y) {
    ++difference_.changed;
    if (difference_.first_changed < 0) difference_.first_changed = index;
    if (one_is_nan) {
      ++difference_.nan_mismatches;
      ++difference_.outside;
      return;
    }
    difference_.max_abs = std::max(difference_.max_abs, distance);
    const double relative = std::isinf(distance) ? distance : distance / std::max(x, y);
    difference_.max_rel = std::max(difference_.max_rel, relative);
    if (std::isinf(distance) || distance > tolerance_.atol + tolerance_.rtol * y) ++difference_.outside;
  }

  void AddComplexPair(int64_t index, const std::complex<double>& x, const std::complex<double>& y) {
    const auto is_nan = [](const std::complex<double>& z) { return std::isnan(z.real()) || std::isnan(z.imag()); };
    if (is_nan(x) && is_nan(y)) {
      ++difference_.nan_both;
      return;
    }
    if (std::isfinite(std::abs(x)) && std::isfinite(std::abs(y))) {
      difference_.dot += x.real() * y.real() + x.imag() * y.imag();
      difference_.squares_a += std::norm(x);
      difference_.squares_b += std::norm(y);
      difference_.squares_difference += std::norm(x - y);
    }
    if (x == y) return;
    // Equal parts differ by 0, even if both are infinite, when the subtraction would give NaN.
    const double real = x.real() == y.real() ? 0 : x.real() - y.real();
    const double imaginary = x.imag() == y.imag() ? 0 : x.imag() - y.imag();
    AddChange(index, is_nan(x) || is_nan(y), std::hypot(real, imaginary), std::abs(x), std::abs(y));
  }

  double DistanceOf(int64_t offset, double x, double y) const {
    if (wide_ == DType::kInt64) return Distance<int64_t>(At(a_, offset), At(b_, offset));
    if (wide_ == DType::kUInt64) return Distance<uint64_t>(At(a_, offset), At(b_, offset));
    return x == y ? 0 : std::abs(x - y);  // inf - inf would be NaN
  }

  const Elements a_;
  const Elements b_;
  const Tolerance tolerance_;
  ValueDifference& difference_;
  const bool has_ulps_;
  const bool rounds_;
  const DType wide_;  // the type for distances
  double x_[kTile];
  double y_[kTile];
  double rounded_x_[kTile];  // to the dtype of b; only if rounds_
  double rounded_y_[kTile];  // to the dtype of a
  double coded_[kTile];      // a tile in any dtype
};

}  // namespace

std::optional<double> ValueDifference::cosine() const {
  if (changed == 0) return 1;
  if (squares_a == 0 && squares_b == 0) return 1;
  const double cosine = dot / (std::sqrt(squares_a) * std::sqrt(squares_b));
  if (std::isnan(cosine)) return std::nullopt;  // one is zero, or a sum overflowed
  return std::clamp(cosine, -1.0, 1.0);
}

std::optional<double> ValueDifference::relative_change() const {
  if (squares_difference == 0) return 0;
  if (squares_a == 0) return std::nullopt;
  return std::sqrt(squares_difference) / std::sqrt(squares_a);
}

void ValueDifference::Add(const ValueDifference& other) {
  if (first_changed < 0) first_changed = other.first_changed;
  numel += other.numel;
  changed += other.changed;
  outside += other.outside;
  beyond_rounding += other.beyond_rounding;
  nan_mismatches += other.nan_mismatches;
  nan_both += other.nan_both;
  max_abs = std::max(max_abs, other.max_abs);
  max_rel = std::max(max_rel, other.max_rel);
  if (other.ulps) ulps = std::max(ulps.value_or(0), *other.ulps);
  dot += other.dot;
  squares_a += other.squares_a;
  squares_b += other.squares_b;
  squares_difference += other.squares_difference;
}

absl::Status CompareElements(const Elements& a, const Elements& b, int64_t begin, int64_t numel,
                             const Tolerance& tolerance, ValueDifference& difference) {
  return Comparison(a, b, tolerance, difference).Run(begin, numel);
}

}  // namespace fsdp
