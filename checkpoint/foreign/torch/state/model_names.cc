// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/model_names.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

constexpr char kModule[] = "module.";

// Names that no module of a program has.
constexpr std::array kParts = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};

// `name` without `part` at the beginning of it or after a dot.
void TakeOut(std::string_view part, std::string& name) {
  for (size_t at = name.find(part); at != name.npos; at = name.find(part, at)) {
    if (at == 0 || name[at - 1] == '.') {
      name.erase(at, part.size());
    } else {
      ++at;
    }
  }
}

std::string WithoutParts(std::string name) {
  if (!absl::StrContains(name, '_')) return name;
  for (const char* part : kParts) TakeOut(part, name);
  return name;
}

}  // namespace

void ModelNames::See(const std::string& name) {
  ++seen_;
  std::string left = name;
  if (absl::StrContains(name, "._") || absl::StartsWith(name, "_")) {
    for (const char* part : kParts) {
      const size_t before = left.size();
      TakeOut(part, left);
      if (left.size() != before) parts_.insert(part);
    }
  }
  if (left.size() != name.size()) ++wrapped_;
  if (absl::StartsWith(left, kModule)) ++modules_;
}

std::string ModelNames::Unwrapped(const std::string& name) const {
  std::string unwrapped = WithoutParts(name);
  if (are_all_modules()) unwrapped = std::string(absl::StripPrefix(unwrapped, kModule));
  return unwrapped;
}

std::string ModelNames::note() const {
  std::vector<std::string> parts;
  if (are_all_modules()) parts.push_back(Quote(kModule));
  for (const std::string& part : parts_) parts.push_back(Quote(part));
  if (parts.empty()) return "";
  const int64_t names = are_all_modules() ? seen_ : wrapped_;
  return absl::StrCat("left out of ", names, names == 1 ? " name" : " names",
                      ", where wrappers put it: ", absl::StrJoin(parts, ", "));
}

}  // namespace fsdp
