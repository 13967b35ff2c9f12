// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/model_value.h"

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

constexpr std::string_view kPrefix = "model/";
constexpr std::string_view kExtraState = "_extra_state";

}  // namespace

StateKey ModelValue(const std::string& fqn) { return StateKey::Extra(absl::StrCat(std::string(kPrefix), fqn)); }

std::optional<std::string> NameOfModelValue(const StateKey& key) {
  const bool is_one = key.section == StateKey::Section::kExtra && key.fqn.size() > kPrefix.size() &&
                      key.fqn.compare(0, kPrefix.size(), kPrefix) == 0;
  return is_one ? std::make_optional(key.fqn.substr(kPrefix.size())) : std::nullopt;
}

bool IsNameInModule(std::string_view name) { return name == kExtraState || name.find('.') != name.npos; }

bool IsExtraState(std::string_view name) {
  if (name.size() <= kExtraState.size()) return name == kExtraState;
  return name.substr(name.size() - kExtraState.size()) == kExtraState &&
         name[name.size() - kExtraState.size() - 1] == '.';
}

}  // namespace fsdp
