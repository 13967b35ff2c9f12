// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/weight_files.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

}  // namespace

bool IsWeightFileName(std::string_view name) {
  constexpr std::array<std::string_view, 8> kSuffixes = {".safetensors", ".pt",  ".pth", ".bin",
                                                         ".ckpt",        ".npz", ".h5",  ".hdf5"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](std::string_view suffix) {
    return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
  });
}

bool IsTrainerFileName(std::string_view name) {
  constexpr std::array<std::string_view, 8> kStarts = {"optimizer",         "scheduler",    "scaler",
                                                       "rng_state",         "sampler",      "random_states",
                                                       "custom_checkpoint", "training_args"};
  return std::any_of(kStarts.begin(), kStarts.end(),
                     [&](std::string_view start) { return name.substr(0, start.size()) == start; });
}

std::vector<std::string> WeightsBeside(const std::string& directory, const std::vector<std::string>& files) {
  constexpr size_t kNamed = 16;
  std::set<std::string> used;
  for (const std::string& file : files) used.insert(SplitPath(file).name);
  std::set<std::string> others;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    std::error_code ignored;
    if (IsWeightFileName(name) && used.count(name) == 0 && it->is_regular_file(ignored)) others.insert(name);
  }
  std::vector<std::string> beside;
  for (const std::string& name : others) {
    if (beside.size() == kNamed) break;
    beside.push_back(absl::StrCat(Quote(name), " (a file beside it: give its path to read it)"));
  }
  if (others.size() > kNamed) beside.push_back(absl::StrCat(others.size() - kNamed, " more files beside it"));
  if (error) beside.push_back(absl::StrCat("other files beside it, which cannot be listed: ", error.message()));
  return beside;
}

std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    const bool is_last = i > 0 && i + 1 == names.size();
    absl::StrAppend(&text, i == 0 ? "" : is_last ? " and " : ", ", Printable(names[i]));
  }
  if (names.size() > kNamed) absl::StrAppend(&text, " and ", names.size() - kNamed, " more");
  return text;
}

}  // namespace fsdp
