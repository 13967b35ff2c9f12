// SPDX-License-Identifier: Apache-2.0
//
// ModulePredicate: a set of modules, by class or by type name; PyTorch's API takes a set of types instead. Modules that
// PyTorch also has use PyTorch's names as type_name(), so a predicate can name classes that are not linked.
#ifndef FSDP_FSDP_OPTIONS_MODULE_PREDICATE_H_
#define FSDP_FSDP_OPTIONS_MODULE_PREDICATE_H_

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/nn/module.h"

namespace fsdp {

// True for the modules of the set. Must not keep the module.
using ModulePredicate = std::function<bool(const Module& module)>;

// Holds for modules that are one of `Classes`, or derived from one.
template <typename... Classes>
ModulePredicate IsAnyOf() {
  return [](const Module& module) { return ((dynamic_cast<const Classes*>(&module) != nullptr) || ...); };
}

// Holds for modules of one of these type_name()s.
inline ModulePredicate HasTypeName(std::vector<std::string_view> type_names) {
  return [type_names = std::move(type_names)](const Module& module) {
    return std::find(type_names.begin(), type_names.end(), module.type_name()) != type_names.end();
  };
}

// PyTorch's _BatchNorm family, by type_name().
inline ModulePredicate IsBatchNorm() {
  return HasTypeName({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"});
}

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_MODULE_PREDICATE_H_
