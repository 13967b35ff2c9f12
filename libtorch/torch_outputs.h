// SPDX-License-Identifier: Apache-2.0
//
// TensorsIn: the tensors in the result of a forward: a tensor, a c10::IValue of any depth, a std::optional, pair,
// tuple, container (vector, array, map, ...) or smart pointer of any of these, or a struct that shows its tensors:
//
//   struct Output {
//     at::Tensor logits, loss;
//     template <typename Visitor>
//     void VisitTensors(const Visitor& visit) const { visit(logits); visit(loss); }
//   };
//
// Tensors in other types are not found.
#ifndef FSDP_LIBTORCH_TORCH_OUTPUTS_H_
#define FSDP_LIBTORCH_TORCH_OUTPUTS_H_

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

// Calls `visit` with each defined tensor of `value`.
struct TensorVisitor {
  std::vector<at::Tensor>& found;

  void operator()(const at::Tensor& tensor) const {
    if (tensor.defined()) found.push_back(tensor);
  }
  void operator()(const c10::IValue& value) const;

  template <typename T>
  void operator()(const std::optional<T>& value) const {
    if (value.has_value()) (*this)(*value);
  }
  template <typename T>
  void operator()(const std::shared_ptr<T>& value) const {
    if (value != nullptr) (*this)(*value);
  }
  template <typename T>
  void operator()(const std::unique_ptr<T>& value) const {
    if (value != nullptr) (*this)(*value);
  }
  template <typename T>
  void operator()(const T& value) const {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      (void)value;
    } else if constexpr (requires { value.VisitTensors(*this); }) {
      value.VisitTensors(*this);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      std::apply([this](const auto&... elements) { ((*this)(elements), ...); }, value);
    } else if constexpr (std::ranges::range<const T>) {
      for (const auto& element : value) (*this)(element);
    }
  }
};

template <typename T>
std::vector<at::Tensor> TensorsIn(const T& value) {
  std::vector<at::Tensor> found;
  TensorVisitor{found}(value);
  return found;
}

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_TORCH_OUTPUTS_H_
