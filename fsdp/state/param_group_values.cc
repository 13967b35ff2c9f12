// SPDX-License-Identifier: Apache-2.0
//
// None, PyTorch's value of options that choose for themselves, is NaN as a number: Adafactor's eps1. JSON writes both
// as null, so a list keeps it.
#include "fsdp/fsdp/state/param_group_values.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// A number that is element `index` of PyTorch's list `list`.
struct Listed {
  std::string_view name;
  const char* list;
  size_t index, size;
};
constexpr Listed kListed[] = {
    {"beta1", "betas", 0, 2}, {"beta2", "betas", 1, 2}, {"eps1", "eps", 0, 2}, {"eps2", "eps", 1, 2}};

constexpr std::string_view kFlags[] = {"amsgrad", "decoupled_weight_decay"};

const Listed* FindListed(std::string_view name) {
  for (const Listed& listed : kListed) {
    if (listed.name == name) return &listed;
  }
  return nullptr;
}

bool IsFlag(std::string_view name) {
  for (const std::string_view flag : kFlags) {
    if (flag == name) return true;
  }
  return false;
}

}  // namespace

void AddGroupValue(const std::string& name, double value, Json& group) {
  const Json number = std::isnan(value) ? Json() : Json(value);
  if (const Listed* const listed = FindListed(name); listed != nullptr) {
    group[listed->list].push_back(number);
  } else if (IsFlag(name)) {
    group[name] = value != 0;
  } else {
    group[name] = number;
  }
}

Json GroupValue(const Json& group, const std::string& name) {
  const Listed* const listed = FindListed(name);
  const auto found = group.find(listed == nullptr ? name : std::string(listed->list));
  if (found == group.end()) return Json();
  if (listed == nullptr) return *found;
  if (!found->is_array() || found->size() != listed->size) return Json();
  const Json& value = (*found)[listed->index];
  return value.is_null() ? Json(std::numeric_limits<double>::quiet_NaN()) : value;
}

}  // namespace fsdp
