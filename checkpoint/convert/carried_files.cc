// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/carried_files.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The names of files that transformers, tokenizers and sentencepiece read next to weights.
bool IsCarriedName(const std::string& name) {
  constexpr std::array kSuffixes = {".json", ".model", ".txt", ".jinja", ".tiktoken"};
  constexpr std::array kOthers = {"trainer_state.json", "requirements.txt"};  // of a run, not of a model
  const bool is_other = std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end();
  return !is_other && !absl::EndsWith(name, ".index.json") &&
         std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](const char* s) { return absl::EndsWith(name, s); });
}

// True if the link `path` in `directory` leads to a file of the directory, or of the cache of which it is a snapshot:
// models--a--b/snapshots/REVISION/config.json -> ../../blobs/DIGEST.
bool StaysInside(const fs::path& path, const fs::path& directory) {
  std::error_code error;
  const fs::path home = fs::canonical(directory, error);
  if (error) return false;
  const fs::path target = fs::canonical(path, error).parent_path();
  if (error) return false;
  return target == home ||
         (home.parent_path().filename() == "snapshots" && target == home.parent_path().parent_path() / "blobs");
}

}  // namespace

CarriedFiles CarriedFiles::LeftBehind() const {
  if (files.empty()) return {};
  std::vector<std::string> names;
  for (const auto& [name, path] : files) names.push_back(name);
  return {.files = {},
          .notes = {absl::StrCat("not copied: ", SomeOf(names), "; a directory of safetensors would keep it all")}};
}

CarriedFiles FindCarriedFiles(const std::string& source, const std::optional<DType>& dtype) {
  constexpr uintmax_t kMaxBytes = uintmax_t{256} << 20;  // each is read whole
  CarriedFiles carried;
  const absl::StatusOr<fs::file_type> config = TypeOfTarget(JoinPath(source, "config.json"));
  if (!config.ok())
    carried.notes.push_back(absl::StrCat("files beside it are not copied: ", config.status().message()));
  if (!config.ok() || *config != fs::file_type::regular) return carried;
  std::error_code error;
  std::map<std::string, std::string> problems;  // by name
  std::set<std::string> code;
  for (fs::directory_iterator it(source, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    std::error_code ignored;
    if (absl::EndsWith(name, ".py")) code.insert(name);
    if (!IsCarriedName(name)) continue;
    const absl::StatusOr<fs::file_type> type = TypeOfTarget(it->path());
    if (!type.ok()) problems[name] = std::string(type.status().message());
    if (!type.ok() || *type != fs::file_type::regular) continue;
    if (it->is_symlink(ignored) && !StaysInside(it->path(), source)) {
      problems[name] = "it is a link that leads out of the directory";
    } else if (it->file_size(ignored) > kMaxBytes) {
      problems[name] = absl::StrCat("it is larger than ", kMaxBytes >> 20, " MiB");
    } else if (const absl::Status status = CheckIsDownloaded(it->path().string()); !status.ok()) {
      problems[name] = std::string(status.message());
    } else {
      carried.files[name] = it->path();
    }
  }
  if (error) carried.notes.push_back(absl::StrCat("not all files beside it are copied: ", error.message()));
  std::vector<std::string> names;
  for (const auto& [name, path] : carried.files) names.push_back(name);
  if (!names.empty()) carried.notes.push_back(absl::StrCat("copied unchanged: ", SomeOf(names)));
  if (dtype && !names.empty()) {
    carried.notes.push_back(absl::StrCat("config.json still names the source's dtype, not ",
                                         std::string(DTypeName(*dtype)), ": with dtype=\"auto\" transformers casts"));
  }
  for (const auto& [name, reason] : problems) {
    carried.notes.push_back(absl::StrCat("not copied: ", Quote(name), ", ", reason));
  }
  if (!code.empty()) {
    carried.notes.push_back(absl::StrCat("not copied, because it is code: ", SomeOf({code.begin(), code.end()})));
  }
  return carried;
}

}  // namespace fsdp
