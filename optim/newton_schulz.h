// SPDX-License-Identifier: Apache-2.0
//
// NewtonSchulz: a matrix with the same singular vectors and singular values near 1, by a quintic iteration; the
// orthogonalisation of Muon, as torch.optim.Muon computes it. (Jordan et al., "Muon: An optimizer for hidden layers in
// neural networks", 2024.)
#ifndef FSDP_OPTIM_NEWTON_SCHULZ_H_
#define FSDP_OPTIM_NEWTON_SCHULZ_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

struct NewtonSchulzOptions {
  // a, b and c of X' = a X + (b A + c A^2) X with A = X X^T.
  std::array<double, 3> coefficients = {3.4445, -4.7750, 2.0315};
  int steps = 5;
  double eps = 1e-7;  // the least norm that the matrix is divided by
};

// Used by one thread. Products use all threads of the device; the bits of a result depend on the values, the processor
// and the number of threads.
class NewtonSchulz final {
 public:
  // `host` is a host device and outlives the result.
  static absl::StatusOr<std::unique_ptr<NewtonSchulz>> Create(Device& host);

  // Replaces `matrix`, row-major [rows, columns]. As in PyTorch every result is rounded to bfloat16, and sums are in
  // float32. Blocks.
  absl::Status Run(const NewtonSchulzOptions& options, int64_t rows, int64_t columns, std::vector<float>& matrix) const;

 private:
  NewtonSchulz(Device& host, std::shared_ptr<const LayerOps> ops, std::unique_ptr<Stream> stream);

  Device& host_;
  std::shared_ptr<const LayerOps> ops_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_NEWTON_SCHULZ_H_
