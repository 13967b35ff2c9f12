// SPDX-License-Identifier: Apache-2.0
//
// GradientStore: the end of a reduction, which turns a sum over ranks into this rank's gradient: divided, in the dtypes
// of the gradient shard and of its low-precision copy, added to the previous gradient, in host memory if the unit is
// offloaded. All of it is work on a stream.
#ifndef FSDP_FSDP_UNITS_GRADIENT_STORE_H_
#define FSDP_FSDP_UNITS_GRADIENT_STORE_H_

#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

// One thread.
class GradientStore {
 public:
  GradientStore() = default;

  // `staging`, on the device, has MemoryPlan::download_staging bytes, for offloaded units. `ops` must outlive it.
  GradientStore(const TensorOps& ops, Buffer staging) : ops_(&ops), staging_(std::move(staging)) {}

  int64_t staging_bytes() const { return staging_.nbytes(); }

  // Puts `reduced` / `divisor` into the unit's gradient shard, on `stream`. `reduced`, this rank's part of the gradient
  // in the reduce dtype, may be overwritten. Adds for parameters that have_grad, and replaces the others' values.
  void Store(const Unit& unit, const Tensor& reduced, double divisor, Stream& stream);

 private:
  void StoreOnDevice(const Unit& unit, const Tensor& reduced, double divisor, bool accumulate, Stream& stream);
  void StoreOnHost(const Unit& unit, const Tensor& reduced, double divisor, bool accumulate, Stream& stream);

  const TensorOps* ops_ = nullptr;
  Buffer staging_;
  Event staging_free_;  // its last user is done
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_GRADIENT_STORE_H_
