// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/weight_files.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<bool> IsFile(const fs::path& path) {
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(path));
  return type == fs::file_type::regular;
}

// Accelerate's optimizer_0, a DCP directory, and DeepSpeed's global_step500. True also for one that cannot
// be read, so that the caller names it.
bool IsTrainingDirectory(const fs::path& path) {
  return path.filename().string().rfind("global_step", 0) == 0 || IsFile(path / ".metadata").value_or(true);
}

// The weight files in `directory` and, `with_directories`, what a trainer keeps there in directories.
std::vector<std::string> NamesBeside(const std::string& directory, const std::vector<std::string>& files,
                                     bool with_directories) {
  constexpr size_t kNamed = 16;
  std::set<std::string> used;
  for (const std::string& file : files) used.insert(SplitPath(file).name);
  std::map<std::string, const char*> others;  // what each is
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    std::error_code ignored;
    const bool is_wanted = IsWeightFileName(name) || (IsTrainerFileName(name) && it->path().extension() != ".json");
    if (is_wanted && used.count(name) == 0 && it->is_regular_file(ignored)) others[name] = "file";
    if (!with_directories) continue;
    if (it->is_directory(ignored) && IsTrainingDirectory(it->path())) others[name] = "directory";
  }
  std::vector<std::string> beside;
  for (const auto& [name, what] : others) {
    if (beside.size() == kNamed) break;
    beside.push_back(absl::StrCat(Quote(name), " (a ", what, " beside it: give its path to read it)"));
  }
  if (others.size() > kNamed) beside.push_back(absl::StrCat(others.size() - kNamed, " more files beside it"));
  if (error) beside.push_back(absl::StrCat("other files beside it, which cannot be listed: ", error.message()));
  return beside;
}

}  // namespace

absl::StatusOr<bool> IsAdapter(const std::string& directory, std::string_view weights) {
  FSDP_ASSIGN_OR_RETURN(const bool has_config, IsFile(fs::path(directory) / kAdapterConfigName));
  return has_config ? IsFile(fs::path(directory) / weights) : false;
}

bool IsAdapterFile(const std::string& path) {
  const std::string name = fs::path(path).filename();
  return name.rfind("adapter_model.", 0) == 0;
}

bool IsWeightFileName(std::string_view name) {
  constexpr std::array<std::string_view, 12> kSuffixes = {
      ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".h5", ".hdf5", ".keras", ".onnx", ".msgpack", ".gguf"};
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
  return NamesBeside(directory, files, /*with_directories=*/true);
}

std::vector<std::string> WeightsBesideGiven(const std::string& path, const std::vector<std::string>& files) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? WeightsBeside(path, files) : std::vector<std::string>();
}

std::vector<std::string> WeightsBesideStep(const std::string& given, const std::string& step,
                                           const std::vector<std::string>& files) {
  std::vector<std::string> beside = WeightsBeside(step, files);
  if (given == step) return beside;
  for (std::string& name : NamesBeside(given, files, /*with_directories=*/false)) beside.push_back(std::move(name));
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
