// SPDX-License-Identifier: Apache-2.0
//
// OperandCasts: the input cast of mixed precision, for units whose forward has no visible beginning. When an operator
// gets a parameter of a unit, its other floating-point operands are cast to the unit's dtype, as autocast does:
//
//   linear(x, weight, bias)      x in float32, weight in bfloat16    ->    linear(x.to(bfloat16), weight, bias)
//
// One operand is cast once per visit of the unit, so that backward sums its gradients in the unit's dtype and casts the
// sum back, as a cast at the unit's entry would. Not cast are: operands of pointwise operators, which promote mixed
// dtypes themselves; operands that are written; parameters; and the module's buffers.
#ifndef FSDP_LIBTORCH_OPERAND_CASTS_H_
#define FSDP_LIBTORCH_OPERAND_CASTS_H_

#include <ATen/ATen.h>

#include <memory>
#include <unordered_set>
#include <vector>

namespace fsdp {

// The casts of one unit. One thread at a time.
class OperandCasts final {
 public:
  using Tensors = std::unordered_set<const c10::TensorImpl*>;

  // Casts to `type`. With `restores`, outputs of the operator in `type` are cast back to the dtype that came in.
  // Tensors of `buffers` are not cast.
  OperandCasts(at::ScalarType type, bool restores, std::shared_ptr<const Tensors> buffers)
      : type_(type), restores_(restores), buffers_(std::move(buffers)) {}

  at::ScalarType type() const { return type_; }
  bool restores() const { return restores_; }

  // True for a floating-point tensor of another dtype that is neither a parameter nor a buffer.
  bool Applies(const at::Tensor& operand) const;

  // `operand` in type(); the same tensor for the same operand, until Clear.
  at::Tensor Cast(const at::Tensor& operand);

  // Call at the end of the visit of the unit.
  void Clear() { made_.clear(); }

 private:
  struct Made {
    at::Tensor from;
    int64_t version = 0;  // an operand that was written since is cast again
    bool recorded = false;
    at::Tensor to;
  };

  const at::ScalarType type_;
  const bool restores_;
  const std::shared_ptr<const Tensors> buffers_;
  std::vector<Made> made_;
};

// While it lives, operators of the thread that made it get cast operands if SlotOwner::casts asks for it. Threads of
// autograd are not affected.
class OperandCastScope final {
 public:
  OperandCastScope();
  ~OperandCastScope();
  OperandCastScope(const OperandCastScope&) = delete;
  OperandCastScope& operator=(const OperandCastScope&) = delete;

 private:
  const bool before_;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_OPERAND_CASTS_H_
