// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/curves/run_names.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {
namespace {

constexpr char kUsualFile[] = "metrics.jsonl";

using Components = std::vector<std::string>;

Components ComponentsOf(const std::string& path) {
  Components components;
  for (const auto& component : std::filesystem::path(path).relative_path()) components.push_back(component);
  return components;
}

// Drops the file where all have one of the same name, unless nothing would be left.
void DropFile(std::vector<Components>& runs) {
  const std::string file = runs.size() == 1 ? kUsualFile : runs.front().back();
  if (!std::all_of(runs.begin(), runs.end(),
                   [&](const Components& run) { return run.size() > 1 && run.back() == file; })) {
    return;
  }
  for (Components& run : runs) run.pop_back();
}

// Drops the directories that all have in common, but not the last component.
void DropCommonDirectories(std::vector<Components>& runs) {
  const auto begins_alike = [&](const Components& run) {
    return run.size() > 1 && run.front() == runs.front().front();
  };
  while (std::all_of(runs.begin(), runs.end(), begins_alike)) {
    for (Components& run : runs) run.erase(run.begin());
  }
}

}  // namespace

std::vector<std::string> RunNames(const std::vector<std::string>& paths) {
  std::vector<Components> runs;
  for (const std::string& path : paths) {
    runs.push_back(ComponentsOf(path));
    // "/" and "" do not have one.
    if (runs.back().empty()) runs.back() = {path};
  }
  DropFile(runs);
  DropCommonDirectories(runs);
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const Components& run : runs) {
    const std::string name = absl::StrJoin(run, "/");
    std::string unique = name;
    for (int number = 2; !taken.insert(unique).second; ++number) unique = absl::StrCat(name, " (", number, ")");
    names.push_back(unique);
  }
  return names;
}

}  // namespace fsdp
