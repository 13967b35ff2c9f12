// SPDX-License-Identifier: Apache-2.0
//
// RunMetadata: small named facts about a state that its tensors do not show: the config of the model, the data, the
// options of the run that made it. A StateDict carries them, a checkpoint keeps them, and two sets of them are compared
// by name. Pure.
//
//   const RunMetadata now = {{"model.n_head", 4}, {"model.activation_function", "relu"}, {"options.lr", 1e-3}};
//   for (const AttributeDifference& difference : CompareAttributes(saved, now)) {
//     std::puts(ToString(difference).c_str());  // model.n_head: 3 -> 4
//   }
#ifndef FSDP_TENSOR_RUN_METADATA_H_
#define FSDP_TENSOR_RUN_METADATA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdp {

// JSON's scalars; std::monostate is null, for a field that is set to nothing. An integer and a double are never equal.
using AttributeValue = std::variant<std::monostate, bool, int64_t, double, std::string>;

// By name, in the order of names. By convention a name begins with a section: "model.n_head", "data.digest",
// "options.lr".
using RunMetadata = std::map<std::string, AttributeValue>;

// `attributes` under the names "`section`.name".
RunMetadata InSection(std::string_view section, const RunMetadata& attributes);

// An attribute that differs between a saved state and the current one; nullopt: that side does not have it.
struct AttributeDifference {
  std::string name;
  std::optional<AttributeValue> saved = {};
  std::optional<AttributeValue> current = {};

  bool operator==(const AttributeDifference& other) const {
    return name == other.name && saved == other.saved && current == other.current;
  }
};

// The attributes that differ, in the order of names: with two different values, or present on one side only.
std::vector<AttributeDifference> CompareAttributes(const RunMetadata& saved, const RunMetadata& current);

// As JSON: null, true, 4, 0.001, "relu". A double has a point or an exponent (1.0) and the fewest digits that give the
// same double back. A string is fit for a terminal: escaped, and cut in its middle when it is long (base/quote.h).
std::string ToString(const AttributeValue& value);

// "model.n_head: 3 -> 4". A side without the attribute is "not recorded".
std::string ToString(const AttributeDifference& difference);

}  // namespace fsdp

#endif  // FSDP_TENSOR_RUN_METADATA_H_
