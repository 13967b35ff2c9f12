// SPDX-License-Identifier: Apache-2.0
//
// TensorOps: the elementwise kernels that sharding itself needs, as an interface that each device implements
// (host_ops.cc, cuda/cuda_ops.cu). Calls return immediately: the work runs in stream order, on contiguous tensors on
// the stream's device, holds references until it has run, and takes any element offset. Operands that are wrong fail
// the stream with kInvalidArgument (check_operands.h). "Float dtypes" are float64, float32, bfloat16, float16.
// Thread-safe.
#ifndef FSDP_TENSOR_OPS_H_
#define FSDP_TENSOR_OPS_H_

#include <vector>

#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct TensorCopy {
  Tensor source, destination;
};

class TensorOps {
 public:
  virtual ~TensorOps() = default;

  // Every byte of `t` becomes zero.
  virtual void Zero(const Tensor& t, Stream& stream) const = 0;

  // destination[i] = convert(source[i] / divisor). Float dtypes; computed in float32 (float64 if either side is),
  // rounded once. `source` and `destination` may be one tensor; otherwise they must not overlap. divisor == 1 converts
  // only. Equal numel, else the stream fails with kInvalidArgument.
  virtual void CastDivide(const Tensor& source, const Tensor& destination, double divisor, Stream& stream) const = 0;

  // As CastDivide, for many intervals of two flat tensors in one launch on a GPU, instead of one per interval.
  // Intervals of the destination must not overlap; one that is not inside its tensor fails the stream with
  // kInvalidArgument.
  virtual void CastDivideIntervals(const Tensor& source, const Tensor& destination, std::vector<IntervalCopy> intervals,
                                   double divisor, Stream& stream) const = 0;

  // destination[i] += source[i], float dtypes, the sum in float32 (float64 if either side is), rounded once.
  virtual void Accumulate(const Tensor& source, const Tensor& destination, Stream& stream) const = 0;

  // t[i] = convert(t[i] * *factor) for each of `tensors`, of float dtypes; `factor` is a float32 tensor of one element,
  // read in stream order. Few launches on a GPU, however many tensors there are.
  virtual void ScaleBy(std::vector<Tensor> tensors, const Tensor& factor, Stream& stream) const = 0;

  // *result (float32, one element) += sum of source[i]^2 over all sources: few launches on a GPU, however many there
  // are. Summed in float64 in a fixed order, so the result is the same in every run; NaN and infinity come through.
  virtual void AccumulateSquaredNorm(std::vector<Tensor> sources, const Tensor& result, Stream& stream) const = 0;

  // *found_inf (float32, one element) becomes 1 if an element of one of `tensors`, of float dtypes, is infinite or NaN,
  // and else does not change. Few launches on a GPU.
  virtual void CheckFinite(std::vector<Tensor> tensors, const Tensor& found_inf, Stream& stream) const = 0;

  // Copies the bytes of each source to its destination, of any dtypes and equal nbytes; no two of them may overlap. Few
  // launches on a GPU, however many copies there are: cheaper than Stream::CopyAsync for many small tensors.
  virtual void CopyTensors(std::vector<TensorCopy> copies, Stream& stream) const = 0;

  // With n the root of the sum, in order, of `squared_norms` (float32): result[0] = n; result[1] = ClipFactor(n,
  // max_norm). All in float32. So a norm becomes a factor without the host.
  virtual void ClipCoefficient(const Tensor& squared_norms, float max_norm, const Tensor& result,
                               Stream& stream) const = 0;
};

// The factor by which torch.nn.utils.clip_grad_norm_ multiplies all gradients, for any norm: max_norm / (norm + 1e-6),
// but at most 1. So it is 0 for a max_norm of 0 and for an infinite norm, and NaN for a norm of NaN, or if both are
// infinite.
inline float ClipFactor(float norm, float max_norm) {
  const float factor = max_norm / (norm + 1e-6f);
  return factor > 1 ? 1 : factor;  // NaN is not above 1
}

// The host device's kernels.
const TensorOps& HostTensorOps();

}  // namespace fsdp

#endif  // FSDP_TENSOR_OPS_H_
