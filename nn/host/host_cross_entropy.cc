// SPDX-License-Identifier: Apache-2.0
//
// Two passes over a row of logits forward (maximum, then sum of exponentials) and one backward, from the statistics of
// forward. Exponentials are float32, their sum and the loss float64: with 50,000 classes a float32 sum would have an
// error that every probability of the row shares.
#include "fsdp/nn/host/host_cross_entropy.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/nn/host/kernel_grain.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/kernel_threads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/nn/host/exp-inl.h"
#include "fsdp/nn/host/softmax-inl.h"
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// For single elements that do not fill a vector.
HWY_INLINE float ToFloat(float value) { return value; }
HWY_INLINE float ToFloat(uint16_t bits) { return BFloat16ToFloat(bits); }
HWY_INLINE float ToFloat(Float16Bits bits) { return Float16ToFloat(static_cast<uint16_t>(bits)); }
HWY_INLINE void FromFloat(float value, float* out) { *out = value; }
HWY_INLINE void FromFloat(float value, uint16_t* out) { *out = FloatToBFloat16(value); }
HWY_INLINE void FromFloat(float value, Float16Bits* out) { *out = Float16Bits{FloatToFloat16(value)}; }

// The sum over rows of log(sum(e^x)) - x[target].
template <typename T>
double LossOf(const Tensor& logits, const int32_t* targets, SoftmaxStatistics* statistics) {
  const int64_t num_classes = logits.shape().dim(1);
  double loss = 0;
  for (int64_t r = 0; r < logits.shape().dim(0); ++r) {
    const T* row = logits.data_as<const T>() + r * num_classes;
    const float maximum = RowMaximum(row, num_classes);
    const double sum = RowExpSum(row, maximum, num_classes);
    statistics[r] = {maximum, static_cast<float>(1 / sum)};
    loss += std::log(sum) - (static_cast<double>(ToFloat(row[targets[r]])) - static_cast<double>(maximum));
  }
  return loss;
}

// Writes a row of factor * (probabilities - one_hot(target)); `grad` may be `x`. The one-hot term is not a comparison
// in the loop: the loop writes factor * p for all classes, and the target's element is written again afterwards, from
// the target's logit, which is read before the loop overwrites it.
template <typename T>
void GradRow(const T* x, int32_t target, SoftmaxStatistics statistics, float factor, T* grad, int64_t n) {
  const FloatTag d;
  const auto probabilities = [&](FloatVec v) HWY_ATTR {
    return hn::Mul(Exp(d, hn::Sub(v, hn::Set(d, statistics.maximum))), hn::Set(d, statistics.inverse_sum));
  };
  const float target_logit = ToFloat(x[target]);  // before `grad` overwrites it
  ForEachVector(n, [&](int64_t i, size_t count) HWY_ATTR {
    const FloatVec p = probabilities(LoadUpTo(d, x + i, count));
    StoreUpTo(d, hn::Mul(p, hn::Set(d, factor)), grad + i, count);
  });
  const float target_probability = hn::GetLane(probabilities(hn::Set(d, target_logit)));
  FromFloat((target_probability - 1.0f) * factor, grad + target);
}

template <typename T>
void GradOf(const Tensor& logits, const int32_t* targets, const SoftmaxStatistics* statistics, float factor,
            const Tensor& grad_logits) {
  const int64_t num_classes = logits.shape().dim(1);
  for (int64_t r = 0; r < logits.shape().dim(0); ++r) {
    GradRow(logits.data_as<const T>() + r * num_classes, targets[r], statistics[r], factor,
            grad_logits.data_as<T>() + r * num_classes, num_classes);
  }
}

double LossKernel(const Tensor& logits, const Tensor& targets, const Tensor& statistics) {
  auto* rows = static_cast<SoftmaxStatistics*>(statistics.data());
  double loss = 0;
  WithElementType(logits.dtype(), [&](auto element) HWY_ATTR {
    loss = LossOf<decltype(element)>(logits, targets.data_as<const int32_t>(), rows);
  });
  return loss;
}

void GradKernel(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float factor,
                const Tensor& grad_logits) {
  const auto* rows = static_cast<const SoftmaxStatistics*>(statistics.data());
  WithElementType(logits.dtype(), [&](auto element) HWY_ATTR {
    GradOf<decltype(element)>(logits, targets.data_as<const int32_t>(), rows, factor, grad_logits);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(LossKernel);
HWY_EXPORT(GradKernel);

absl::Status HostCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                              int threads) {
  const int64_t num_rows = logits.shape().dim(0);
  const int64_t num_classes = logits.shape().dim(1);
  // All targets are checked before anything is read through one.
  for (int64_t r = 0; r < num_rows; ++r) {
    const int32_t target = targets.data_as<const int32_t>()[r];
    if (target < 0 || target >= num_classes) {
      return absl::OutOfRangeError(absl::StrCat("cross entropy: target ", target, " at index ", r, " of ", num_rows,
                                                " is not in [0, ", num_classes, ")"));
    }
  }
  const int64_t grain = RowGrain(num_classes);
  std::vector<double> sums(NumPieces(threads, num_rows, grain));
  ParallelFor(threads, num_rows, grain, [&](int piece, Interval rows) {
    sums[piece] = HWY_DYNAMIC_DISPATCH(LossKernel)(RowPiece(logits, rows, num_classes), Piece(targets, rows),
                                                   RowPiece(statistics, rows, 2));
  });
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  *loss.data_as<float>() = static_cast<float>(sum / static_cast<double>(num_rows));
  return absl::OkStatus();
}

void HostCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, int threads) {
  const int64_t num_rows = logits.shape().dim(0);
  const int64_t num_classes = logits.shape().dim(1);
  const float factor = scale / static_cast<float>(num_rows);
  ParallelFor(threads, num_rows, RowGrain(num_classes), [&](int, Interval rows) {
    HWY_DYNAMIC_DISPATCH(GradKernel)
    (RowPiece(logits, rows, num_classes), Piece(targets, rows), RowPiece(statistics, rows, 2), factor,
     RowPiece(grad_logits, rows, num_classes));
  });
}

}  // namespace fsdp
#endif  // HWY_ONCE
