// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/map_tensors.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue_inl.h>

#include <utility>
#include <vector>

namespace fsdp {

void TensorMapper::operator()(c10::IValue& value) const {
  const auto mapped = [this](c10::IValue part) {
    (*this)(part);
    return part;
  };
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    (*this)(tensor);
    value = std::move(tensor);
  } else if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toTupleRef().elements()) elements.push_back(mapped(element));
    value = c10::ivalue::Tuple::create(std::move(elements));
  } else if (value.isList()) {
    const c10::List<c10::IValue> from = value.toList();
    // A new container: the old one may be shared with the program.
    c10::impl::GenericList to(from.elementType());
    for (const c10::IValue& element : value.toListRef()) to.push_back(mapped(element));
    value = std::move(to);
  } else if (value.isGenericDict()) {
    const c10::Dict<c10::IValue, c10::IValue> from = value.toGenericDict();
    c10::impl::GenericDict to(from.keyType(), from.valueType());
    for (const auto& entry : from) to.insert(entry.key(), mapped(entry.value()));
    value = std::move(to);
  }
}

}  // namespace fsdp
