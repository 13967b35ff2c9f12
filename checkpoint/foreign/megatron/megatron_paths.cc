// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kIterationPrefix = "iter_";
constexpr absl::string_view kRankPrefix = "mp_rank_";
constexpr int64_t kMaxTextBytes = 64 * 1024;

bool IsDigits(absl::string_view text, size_t max) {
  return !text.empty() && text.size() <= max && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

absl::StatusOr<bool> IsFile(const std::string& directory, const char* name) {
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(JoinPath(directory, name)));
  return type != fs::file_type::not_found && type != fs::file_type::directory;
}

// The object in metadata.json; kDataLoss if it is not one.
absl::StatusOr<nlohmann::json> ReadMetadata(const std::string& directory) {
  const std::string path = JoinPath(directory, kMegatronMetadataName);
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), path, kMaxTextBytes));
  absl::StatusOr<nlohmann::json> json = ParseJson(text);
  if (!json.ok()) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(path));
  return json.ok() ? std::move(json) : Annotate(json.status(), path);
}

}  // namespace

std::string MegatronIterationName(int64_t iteration) {
  const std::string digits = absl::StrCat(iteration);
  constexpr size_t kDigits = 7;
  return absl::StrCat("iter_", std::string(kDigits - std::min(kDigits, digits.size()), '0'), digits);
}

std::optional<int64_t> MegatronIteration(std::string_view name) {
  absl::string_view text(name.data(), name.size());
  constexpr size_t kMaxDigits = 18;
  int64_t iteration = 0;
  if (!absl::StartsWith(text, kIterationPrefix)) return std::nullopt;
  text.remove_prefix(kIterationPrefix.size());
  if (!IsDigits(text, kMaxDigits) || !absl::SimpleAtoi(text, &iteration)) return std::nullopt;
  return iteration;
}

std::optional<std::vector<int>> MegatronRankNumbers(std::string_view name) {
  absl::string_view text(name.data(), name.size());
  if (!absl::StartsWith(text, kRankPrefix)) return std::nullopt;
  text.remove_prefix(kRankPrefix.size());
  constexpr size_t kMaxDigits = 6;
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(text, '_')) {
    int number = 0;
    if (numbers.size() == 3 || !IsDigits(part, kMaxDigits) || !absl::SimpleAtoi(part, &number)) return std::nullopt;
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string>> MegatronRankDirectories(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  std::vector<std::pair<std::vector<int>, std::string>> ranks;
  for (const std::string& name : names) {
    std::optional<std::vector<int>> numbers = MegatronRankNumbers(name);
    if (!numbers) continue;
    FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(JoinPath(directory, name)));
    if (type == fs::file_type::directory) ranks.emplace_back(*std::move(numbers), name);
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> sorted;
  for (auto& [numbers, name] : ranks) sorted.push_back(std::move(name));
  return sorted;
}

// The tracker file makes a directory a ROOT, even if there are also checkpoints' files in it.
absl::StatusOr<MegatronForm> MegatronFormOf(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_root, IsFile(directory, kMegatronLatestName));
  if (is_root) return MegatronForm::kRoot;
  FSDP_ASSIGN_OR_RETURN(const bool is_dist, IsMegatronDist(directory));
  if (is_dist) return MegatronForm::kDist;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> ranks, MegatronRankDirectories(directory));
  return ranks.empty() ? MegatronForm::kNone : MegatronForm::kRanks;
}

absl::StatusOr<std::string> MegatronLatest(const std::string& root) {
  const std::string path = JoinPath(root, kMegatronLatestName);
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), path, kMaxTextBytes));
  const std::string latest(absl::StripAsciiWhitespace(text));
  std::string name = latest;
  if (latest != kMegatronRelease) {
    const std::optional<int64_t> iteration = MegatronIteration(absl::StrCat("iter_", latest));
    if (!iteration) {
      FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(path));
      return absl::DataLossError(
          absl::StrCat(path, " has ", Quote(latest), ", expected the number of an iteration, or \"release\""));
    }
    name = MegatronIterationName(*iteration);
  }
  std::string directory = JoinPath(root, name);
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(directory));
  if (type == fs::file_type::directory) return directory;
  return absl::DataLossError(absl::StrCat(path, " has ", Quote(latest), ", but there is no directory ", directory,
                                          ": give the directory of another iteration"));
}

// metadata.json names the format of the other files; a later version would be read wrongly.
absl::Status CheckMegatronMetadata(const std::string& directory) {
  const std::string path = JoinPath(directory, kMegatronMetadataName);
  FSDP_ASSIGN_OR_RETURN(const nlohmann::json json, ReadMetadata(directory));
  const absl::StatusOr<std::string> backend = StringMember(json, "sharded_backend");
  if (!backend.ok()) return Annotate(backend.status(), path);
  if (*backend != "torch_dist") {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the backend ", Quote(*backend),
                     " is not read: load the checkpoint with Megatron-Core and save it with --ckpt-format torch_dist"));
  }
  for (const char* const name : {"sharded_backend_version", "common_backend_version"}) {
    if (!json.contains(name)) continue;
    const absl::StatusOr<int64_t> version = IntegerMember(json, name);
    if (!version.ok()) return Annotate(version.status(), path);
    if (*version == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", name, " is ", *version, ", and only version 1 is read"));
  }
  if (!json.contains("common_backend")) return absl::OkStatus();
  const absl::StatusOr<std::string> common = StringMember(json, "common_backend");
  if (!common.ok()) return Annotate(common.status(), path);
  if (*common == "torch") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": the common backend is ", Quote(*common), ", expected torch"));
}

// The name of the directory and the files must agree on the iteration. "release" means that weights were converted and
// no step was taken.
absl::StatusOr<int64_t> MegatronStep(const std::string& directory, std::optional<int64_t> iteration) {
  const std::string name = SplitPath(directory).name;
  if (name == kMegatronRelease || !iteration) return -1;
  const std::optional<int64_t> named = MegatronIteration(name);
  if (named.value_or(*iteration) == *iteration) return *iteration;
  return absl::DataLossError(absl::StrCat(directory, ": its files are of iteration ", *iteration,
                                          ", and its name is of another: files or directories were exchanged"));
}

}  // namespace fsdp
