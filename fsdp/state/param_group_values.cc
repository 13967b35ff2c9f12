// SPDX-License-Identifier: Apache-2.0
//
// None, PyTorch's value of options that choose for themselves, is NaN as a number: Adafactor's eps1. JSON writes both
// as null, so a list keeps it.
#include "fsdp/fsdp/state/param_group_values.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
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
constexpr Listed kListed[] = {{"beta1", "betas", 0, 2},
                              {"beta2", "betas", 1, 2},
                              {"eps1", "eps", 0, 2},
                              {"eps2", "eps", 1, 2},
                              {"ns_a", "ns_coefficients", 0, 3},
                              {"ns_b", "ns_coefficients", 1, 3},
                              {"ns_c", "ns_coefficients", 2, 3}};

constexpr std::string_view kFlags[] = {"amsgrad", "decoupled_weight_decay", "nesterov", "bf16_stochastic_round"};

// Python counts with them, so they must not be floats.
constexpr std::string_view kIntegers[] = {"ns_steps", "rounding_seed"};

// Muon's way to adjust the learning rate: AdjustLr's values, in order.
constexpr std::string_view kAdjust = "adjust_lr_fn";
constexpr const char* kAdjustments[] = {"original", "match_rms_adamw", "spectral_unclamped"};

const Listed* FindListed(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kListed), std::end(kListed), [&](const Listed& listed) { return listed.name == name; });
  return found == std::end(kListed) ? nullptr : found;
}

template <size_t kSize>
bool IsIn(const std::string_view (&names)[kSize], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The number of a name in kAdjustments; PyTorch's None is the first. Other values stay as they are.
Json NumberOfAdjustment(const Json& value) {
  if (value.is_null()) return Json(0);
  for (size_t i = 0; i < std::size(kAdjustments); ++i) {
    if (value == kAdjustments[i]) return Json(i);
  }
  return value;
}

}  // namespace

void AddGroupValue(const std::string& name, double value, Json& group) {
  const Json number = std::isnan(value) ? Json() : Json(value);
  if (const Listed* const listed = FindListed(name); listed != nullptr) {
    group[listed->list].push_back(number);
  } else if (IsIn(kFlags, name)) {
    group[name] = value != 0;
  } else if (IsIn(kIntegers, name)) {
    group[name] = static_cast<int64_t>(value);
  } else if (name == kAdjust) {
    group[name] = kAdjustments[static_cast<size_t>(value)];
  } else {
    group[name] = number;
  }
}

Json GroupValue(const Json& group, const std::string& name) {
  const Listed* const listed = FindListed(name);
  const auto found = group.find(listed == nullptr ? name : std::string(listed->list));
  if (found == group.end()) return Json();
  if (name == kAdjust) return NumberOfAdjustment(*found);
  if (listed == nullptr) return *found;
  // A tuple of PyTorch's files is {"__python__": "tuple", "items": [...]}.
  const auto items = found->find("items");
  const Json& list = items == found->end() ? *found : *items;
  if (!list.is_array() || list.size() != listed->size) return Json();
  const Json& value = list[listed->index];
  return value.is_null() ? Json(std::numeric_limits<double>::quiet_NaN()) : value;
}

}  // namespace fsdp
