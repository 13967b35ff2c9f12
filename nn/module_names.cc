// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/module_names.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {
namespace {

// A row of the usual table: matched[i] is true if the pattern so far matches the first i characters of the name. So the
// time is the product of the two lengths, whatever the pattern.
std::vector<bool> Extend(const std::vector<bool>& matched, char c, bool star, bool across_dots, std::string_view name) {
  std::vector<bool> next(name.size() + 1);
  next[0] = star && matched[0];
  for (size_t i = 1; i <= name.size(); ++i) {
    if (star) {
      next[i] = matched[i] || (next[i - 1] && (across_dots || name[i - 1] != '.'));
    } else {
      next[i] = matched[i - 1] && name[i - 1] == c;
    }
  }
  return next;
}

}  // namespace

bool MatchesModuleName(std::string_view pattern, std::string_view name) {
  std::vector<bool> matched(name.size() + 1);
  matched[0] = true;
  for (size_t p = 0; p < pattern.size(); ++p) {
    const bool star = pattern[p] == '*';
    const bool across_dots = star && p + 1 < pattern.size() && pattern[p + 1] == '*';
    matched = Extend(matched, pattern[p], star, across_dots, name);
    if (across_dots) ++p;
  }
  return matched[name.size()];
}

absl::StatusOr<std::vector<Module*>> ModulesByName(Module& root, const std::vector<std::string>& patterns) {
  std::vector<bool> used(patterns.size());
  std::vector<Module*> modules;
  const std::vector<Module::NamedModule> all = root.NamedModules();
  for (auto named = all.rbegin(); named != all.rend() && named->second != &root; ++named) {
    bool matches = false;
    for (size_t p = 0; p < patterns.size(); ++p) {
      if (!MatchesModuleName(patterns[p], named->first)) continue;
      used[p] = matches = true;
    }
    if (matches) modules.push_back(named->second);
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused == used.end()) return modules;
  std::vector<std::string> children;
  for (const auto& [name, child] : root.children()) children.push_back(name);
  return absl::NotFoundError(absl::StrCat("no module's name matches \"", patterns[unused - used.begin()],
                                          "\", expected one below ", std::string(root.type_name()),
                                          ", whose children are ", absl::StrJoin(children, ", "),
                                          " (* matches any characters but a dot, ** any)"));
}

}  // namespace fsdp
