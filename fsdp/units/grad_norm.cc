// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert.h"

namespace fsdp {
namespace {

constexpr int64_t kPiece = 1024;  // elements converted at a time

double AddPiece(const double* values, int64_t n, double p, double sum) {
  for (int64_t i = 0; i < n; ++i) {
    const double magnitude = std::abs(values[i]);
    if (std::isinf(p)) {
      sum = std::isnan(magnitude) || magnitude > sum ? magnitude : sum;  // a NaN stays: nothing is larger than it
    } else {
      sum += p == 1 ? magnitude : p == 2 ? magnitude * magnitude : std::pow(magnitude, p);
    }
  }
  return sum;
}

}  // namespace

absl::StatusOr<double> PowerSum(const Tensor& t, double p) {
  std::array<double, kPiece> values;
  double sum = 0;
  for (int64_t begin = 0; begin < t.numel(); begin += kPiece) {
    const Tensor piece = t.Slice({begin, std::min(begin + kPiece, t.numel())});
    FSDP_RETURN_IF_ERROR(Convert(t.dtype(), piece.data(), DType::kFloat64, values.data(), piece.numel()));
    sum = AddPiece(values.data(), piece.numel(), p, sum);
  }
  return sum;
}

}  // namespace fsdp
