// SPDX-License-Identifier: Apache-2.0
//
// The iteration works on the side with fewer rows, so that A is the smaller of the two products of X with itself.
// Values are kept in float32 and rounded to bfloat16, since only the products' inputs must be bfloat16 numbers.
#include "fsdp/optim/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {
namespace {

// Rounds `count` numbers to bfloat16.
absl::Status Round(float* values, int64_t count) {
  std::vector<uint16_t> rounded(count);
  FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, values, DType::kBFloat16, rounded.data(), count));
  return Convert(DType::kBFloat16, rounded.data(), DType::kFloat32, values, count);
}

// values = factor values + other, rounded.
absl::Status ScaleAndAdd(double factor, const float* other, double other_factor, float* values, int64_t count) {
  const auto a = static_cast<float>(factor), b = static_cast<float>(other_factor);
  for (int64_t i = 0; i < count; ++i) values[i] = a * values[i] + b * other[i];
  return Round(values, count);
}

// Divides by the norm, which is a bfloat16 number too, so that no singular value is above 1.
absl::Status Normalise(double eps, float* values, int64_t count) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += static_cast<double>(values[i]) * values[i];
  auto norm = static_cast<float>(std::max(std::sqrt(square), eps));
  FSDP_RETURN_IF_ERROR(Round(&norm, 1));
  for (int64_t i = 0; i < count; ++i) values[i] /= norm;
  return Round(values, count);
}

// to[c, r] = from[r, c].
void Transpose(int64_t rows, int64_t columns, const float* from, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
}

}  // namespace

NewtonSchulz::NewtonSchulz(Device& host, std::shared_ptr<const LayerOps> ops, std::unique_ptr<Stream> stream)
    : host_(host), ops_(std::move(ops)), stream_(std::move(stream)) {}

absl::StatusOr<std::unique_ptr<NewtonSchulz>> NewtonSchulz::Create(Device& host) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<const LayerOps> ops, LayerOpsFor(host));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, host.CreateStream("newton_schulz"));
  return std::unique_ptr<NewtonSchulz>(new NewtonSchulz(host, std::move(ops), std::move(stream)));
}

absl::Status NewtonSchulz::Run(const NewtonSchulzOptions& options, int64_t rows, int64_t columns,
                               std::vector<float>& matrix) const {
  const int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  if (m == 0) return absl::OkStatus();
  const auto allocate = [this](int64_t r, int64_t c) { return Tensor::Empty(host_, DType::kFloat32, {r, c}); };
  FSDP_ASSIGN_OR_RETURN(const Tensor x, allocate(m, n));
  FSDP_ASSIGN_OR_RETURN(const Tensor product, allocate(m, n));
  FSDP_ASSIGN_OR_RETURN(const Tensor gram, allocate(m, m));
  FSDP_ASSIGN_OR_RETURN(const Tensor square, allocate(m, m));
  float* const values = x.data_as<float>();
  FSDP_RETURN_IF_ERROR(Round(matrix.data(), m * n));
  if (rows > columns) {
    Transpose(rows, columns, matrix.data(), values);
  } else {
    std::copy(matrix.begin(), matrix.end(), values);
  }
  FSDP_RETURN_IF_ERROR(Normalise(options.eps, values, m * n));
  const auto& [a, b, c] = options.coefficients;
  for (int step = 0; step < options.steps; ++step) {
    ops_->Matmul(x, x, Tensor(), gram, {.transpose_b = true}, *stream_);
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    FSDP_RETURN_IF_ERROR(Round(gram.data_as<float>(), m * m));
    ops_->Matmul(gram, gram, Tensor(), square, {}, *stream_);
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    FSDP_RETURN_IF_ERROR(ScaleAndAdd(b, square.data_as<float>(), c, gram.data_as<float>(), m * m));
    ops_->Matmul(gram, x, Tensor(), product, {}, *stream_);
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    FSDP_RETURN_IF_ERROR(ScaleAndAdd(a, product.data_as<float>(), 1, values, m * n));
  }
  if (rows > columns) {
    Transpose(m, n, values, matrix.data());
  } else {
    std::copy(values, values + m * n, matrix.begin());
  }
  return absl::OkStatus();
}

}  // namespace fsdp
