// SPDX-License-Identifier: Apache-2.0
//
// AttributeJson: an attribute's value in a report for programs.
#ifndef FSDP_TOOLS_INSPECT_ATTRIBUTE_JSON_H_
#define FSDP_TOOLS_INSPECT_ATTRIBUTE_JSON_H_

#include <string>
#include <type_traits>
#include <variant>

#include "fsdp/tensor/run_metadata.h"
#include "nlohmann/json.hpp"

namespace fsdp {

// The scalar in the manifest; std::monostate is null.
inline nlohmann::ordered_json AttributeJson(const AttributeValue& value) {
  return std::visit(
      [](const auto& scalar) -> nlohmann::ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(scalar)>, std::monostate>) {
          return nullptr;
        } else {
          return scalar;
        }
      },
      value);
}

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_ATTRIBUTE_JSON_H_
