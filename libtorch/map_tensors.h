// SPDX-License-Identifier: Apache-2.0
//
// MapTensors: replaces each tensor in a value of a type in which torch_outputs.h finds tensors, in the order of
// TensorsIn.
#ifndef FSDP_LIBTORCH_MAP_TENSORS_H_
#define FSDP_LIBTORCH_MAP_TENSORS_H_

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace fsdp {

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

struct TensorMapper {
  const TensorMap& map;

  void operator()(at::Tensor& tensor) const {
    if (tensor.defined()) tensor = map(tensor);
  }
  // A struct's VisitTensors is const, but MapTensors may write to the struct.
  void operator()(const at::Tensor& tensor) const { (*this)(const_cast<at::Tensor&>(tensor)); }
  // Lists, tuples and dicts are replaced by new ones; objects of TorchScript stay as they are.
  void operator()(c10::IValue& value) const;

  template <typename T>
  void operator()(std::optional<T>& value) const {
    if (value.has_value()) (*this)(*value);
  }
  // Copies, if possible, an object that others may hold too.
  template <typename T>
  void operator()(std::shared_ptr<T>& value) const {
    if constexpr (std::is_copy_constructible_v<T> && !std::is_polymorphic_v<T>) {
      if (value == nullptr) return;
      auto copy = std::make_shared<std::remove_const_t<T>>(*value);
      (*this)(*copy);
      value = std::move(copy);
    }
  }
  template <typename T>
  void operator()(std::unique_ptr<T>& value) const {
    if (value != nullptr) (*this)(*value);
  }
  template <typename T>
  void operator()(T& value) const {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      (void)value;
    } else if constexpr (requires { value.VisitTensors(*this); }) {
      value.VisitTensors(*this);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      std::apply([this](auto&... elements) { ((*this)(elements), ...); }, value);
    } else if constexpr (std::ranges::range<T> && !std::is_const_v<T>) {
      for (auto&& element : value) {
        if constexpr (std::is_lvalue_reference_v<decltype(element)>) (*this)(element);
      }
    }
  }
};

template <typename T>
void MapTensors(T& value, const TensorMap& map) {
  TensorMapper{map}(value);
}

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_MAP_TENSORS_H_
