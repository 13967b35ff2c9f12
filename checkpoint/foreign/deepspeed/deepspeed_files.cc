// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kModelSuffix = "_model_states.pt";
constexpr absl::string_view kOptimSuffix = "_optim_states.pt";
constexpr char kUniversalTag[] = "global_step";
constexpr char kUniversalSuffix[] = "_universal";
constexpr int64_t kMaxTagBytes = 4096;
constexpr size_t kMostTried = 1000;  // names of a ROOT

// The names of ZeRO: [bf16_|fp16_]zero_pp_rank_R_mp_rank_MM_optim_states.pt for each data-parallel rank R,
// mp_rank_MM_model_states.pt of one file for all ranks, or zero_pp_rank_R_mp_rank_MM_model_states.pt of ZeRO 3, where
// each rank has its own. Source: deepspeed/runtime/engine.py, _get_ckpt_name and _get_zero_ckpt_name.
// What a file's name says.
struct RankName {
  bool is_optim = false;
  std::string prefix;       // "", "bf16_", "fp16_"
  std::optional<int> rank;  // of zero_pp_rank_R
  int model_parallel = 0;   // of mp_rank_M
};

// Takes digits from the front of `text`.
std::optional<int> TakeNumber(absl::string_view& text) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  int number = 0;
  if (digits == 0 || digits > 9 || !absl::SimpleAtoi(text.substr(0, digits), &number)) return std::nullopt;
  text.remove_prefix(digits);
  return number;
}

bool IsStatesFile(absl::string_view name) {
  return absl::EndsWith(name, kModelSuffix.substr(1)) || absl::EndsWith(name, kOptimSuffix.substr(1));
}

// nullopt for a name of another form: of a pipeline's layer, or of an expert.
std::optional<RankName> ParseRankName(absl::string_view name) {
  RankName parsed;
  if (absl::ConsumeSuffix(&name, kOptimSuffix)) {
    parsed.is_optim = true;
  } else if (!absl::ConsumeSuffix(&name, kModelSuffix)) {
    return std::nullopt;
  }
  for (const absl::string_view prefix : {"bf16_", "fp16_"}) {
    if (absl::ConsumePrefix(&name, prefix)) parsed.prefix = std::string(prefix);
  }
  if (absl::ConsumePrefix(&name, "zero_pp_rank_")) {
    parsed.rank = TakeNumber(name);
    if (!parsed.rank || !absl::ConsumePrefix(&name, "_")) return std::nullopt;
  }
  if (!absl::ConsumePrefix(&name, "mp_rank_")) return std::nullopt;
  const std::optional<int> model_parallel = TakeNumber(name);
  if (!model_parallel || !name.empty()) return std::nullopt;
  parsed.model_parallel = *model_parallel;
  return parsed;
}

// True for a directory with the files of a checkpoint. Errors of the disk.
absl::StatusOr<bool> IsTag(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(directory));
  if (type != fs::file_type::directory) return false;
  const std::string zero = JoinPath(JoinPath(directory, kDeepSpeedZero), kDeepSpeedOptimizerState);
  FSDP_ASSIGN_OR_RETURN(const fs::file_type universal, TypeOfTarget(zero));
  if (universal == fs::file_type::regular) return true;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  return std::any_of(names.begin(), names.end(), [](const std::string& name) { return IsStatesFile(name); });
}

// The same for `tag` of ROOT; false for "".
absl::StatusOr<bool> IsTagOf(const std::string& root, const std::string& tag) {
  if (tag.empty()) return false;
  return IsTag(JoinPath(root, tag));
}

// The TAG in the file `name` of ROOT; nullopt without such a file, "" if what it holds is no name.
absl::StatusOr<std::optional<std::string>> TagIn(const std::string& root, const std::string& name) {
  const std::string path = JoinPath(root, name);
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(path));
  if (type != fs::file_type::regular) return std::optional<std::string>();
  const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), path, kMaxTagBytes);
  // A long file holds no name. One that cannot be read says nothing about what the directory is.
  if (!text.ok() && !absl::IsInvalidArgument(text.status())) return text.status();
  const std::string tag = text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
  return std::optional<std::string>(CheckFileName(tag).ok() ? tag : "");
}

absl::Status NotThere(const std::string& root, const std::string& file, const std::string& tag) {
  const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), JoinPath(root, file), kMaxTagBytes);
  const bool is_one_word = text.ok() && !text->empty() &&
                           absl::StripAsciiWhitespace(*text).find_first_of(" \t\r\n") == absl::string_view::npos;
  if (!is_one_word) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(JoinPath(root, file)));
  return absl::NotFoundError(absl::StrCat(
      JoinPath(root, file), tag.empty() ? " does not name a directory" : absl::StrCat(" names ", Quote(tag)),
      tag.empty() ? "" : ", which is not there or is not a checkpoint of DeepSpeed",
      ": give one of the directories in ", root));
}

// Names by rank, one prefix for all.
absl::Status TakeRank(const std::string& directory, const std::string& name, const RankName& parsed,
                      std::map<int, std::string>& ranks, std::optional<std::string>& prefix) {
  if (prefix && *prefix != parsed.prefix) {
    return absl::InvalidArgumentError(absl::StrCat(directory, " has files of two saves: ", Quote(name), " and ",
                                                   Quote(ranks.begin()->second),
                                                   ": remove those that do not belong to it"));
  }
  prefix = parsed.prefix;
  if (!ranks.emplace(parsed.rank.value_or(0), name).second) {
    return absl::InvalidArgumentError(absl::StrCat(directory, " has two files of rank ", parsed.rank.value_or(0), ": ",
                                                   Quote(name), " and ", Quote(ranks[parsed.rank.value_or(0)])));
  }
  return absl::OkStatus();
}

// The names of `ranks` without a gap. A missing name follows from the others.
absl::StatusOr<std::vector<std::string>> WithoutGaps(const std::string& directory,
                                                     const std::map<int, std::string>& ranks) {
  std::vector<std::string> names;
  for (const auto& [rank, name] : ranks) {
    const int expected = static_cast<int>(names.size());
    if (rank != expected) {
      const size_t at = name.find("zero_pp_rank_") + sizeof("zero_pp_rank_") - 1;
      return absl::NotFoundError(
          absl::StrCat(JoinPath(directory, absl::StrCat(name.substr(0, at), expected, name.substr(name.find('_', at)))),
                       " is missing: each rank's file has a part of every tensor"));
    }
    names.push_back(name);
  }
  return names;
}

// True if `directory` has two files of these names that are one archive: equal in size, in the first block, with the
// pickle, and in the last, whose directory has a CRC of every entry.
absl::StatusOr<bool> IsSameArchive(const std::string& directory, const std::string& a, const std::string& b) {
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(JoinPath(directory, a)));
  if (type != fs::file_type::regular) return false;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> first, PosixFileSystem().Open(JoinPath(directory, a)));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> second, PosixFileSystem().Open(JoinPath(directory, b)));
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, first->Size());
  FSDP_ASSIGN_OR_RETURN(const int64_t other_nbytes, second->Size());
  if (nbytes != other_nbytes) return false;
  std::vector<std::byte> left(std::min(nbytes, kBlockBytes));
  std::vector<std::byte> right(left.size());
  for (const int64_t begin : {int64_t{0}, nbytes - std::ssize(left)}) {
    FSDP_RETURN_IF_ERROR(first->Read(begin, absl::MakeSpan(left)));
    FSDP_RETURN_IF_ERROR(second->Read(begin, absl::MakeSpan(right)));
    if (left != right) return false;
  }
  return true;
}

absl::Status RefuseParallel(const std::string& directory, const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(
      directory, " has ", Quote(name),
      ": checkpoints of tensor, pipeline and expert parallelism are not read: save a whole model from the program that "
      "trained it"));
}

}  // namespace

std::string UniversalTagName(int64_t step) { return absl::StrCat(kUniversalTag, step, kUniversalSuffix); }

bool IsUniversalTagName(std::string_view name) {
  absl::string_view rest(name.data(), name.size());
  return absl::ConsumePrefix(&rest, kUniversalTag) && absl::ConsumeSuffix(&rest, kUniversalSuffix) && !rest.empty() &&
         std::all_of(rest.begin(), rest.end(), [](char c) { return absl::ascii_isdigit(c); });
}

bool IsDeepSpeedFile(std::string_view name) { return IsStatesFile(absl::string_view(name.data(), name.size())); }

absl::StatusOr<bool> IsInsideDeepSpeedTag(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_tag, IsTag(directory));
  if (is_tag) return true;
  // zero/NAME/ or zero/ of a universal TAG.
  const PathParts parts = SplitPath(directory);
  const bool is_zero = parts.name == kDeepSpeedZero;
  if (!is_zero && SplitPath(parts.directory).name != kDeepSpeedZero) return false;
  return IsThere(JoinPath(is_zero ? directory : parts.directory, kDeepSpeedOptimizerState));
}

// "latest" is a name that other programs use too, so a directory counts only if it leads to files of DeepSpeed.
absl::StatusOr<bool> IsDeepSpeedDirectory(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const bool is_tag, IsTag(path));
  if (is_tag) return true;
  bool is_root = false;
  for (const char* const latest : {kDeepSpeedLatest, kDeepSpeedLatestUniversal}) {
    FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> tag, TagIn(path, latest));
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsTagOf(path, tag.value_or("")));
    if (is_there) return true;
    is_root = is_root || tag;
  }
  if (!is_root) return false;
  // A ROOT whose `latest` is wrong: Open says so.
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(path));
  for (size_t i = 0; i < std::min(names.size(), kMostTried); ++i) {
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsTagOf(path, names[i]));
    if (is_there) return true;
  }
  return false;
}

absl::StatusOr<std::string> DeepSpeedTag(const std::string& path, std::string* note) {
  note->clear();
  FSDP_ASSIGN_OR_RETURN(const bool is_tag, IsTag(path));
  if (is_tag) return path;
  FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> latest, TagIn(path, kDeepSpeedLatest));
  FSDP_ASSIGN_OR_RETURN(const bool has_latest, IsTagOf(path, latest.value_or("")));
  if (has_latest) return JoinPath(path, *latest);
  FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> universal, TagIn(path, kDeepSpeedLatestUniversal));
  if (!universal) return NotThere(path, kDeepSpeedLatest, latest.value_or(""));
  FSDP_ASSIGN_OR_RETURN(const bool has_universal, IsTagOf(path, *universal));
  if (!has_universal) return NotThere(path, kDeepSpeedLatestUniversal, *universal);
  // Only the universal form of the newest TAG may replace it: any other one would be another step, without a word.
  if (latest && !latest->empty() && *universal != absl::StrCat(*latest, kUniversalSuffix)) {
    return NotThere(path, kDeepSpeedLatest, *latest);
  }
  if (latest) {
    *note = absl::StrCat(Quote(*latest), ", which \"latest\" names, is not there: ", Quote(*universal), " is read");
  }
  return JoinPath(path, *universal);
}

// Files of two saves in one directory are refused: the names alone do not say which of them belong together.
absl::StatusOr<DeepSpeedFiles> ListDeepSpeedFiles(const std::string& tag) {
  DeepSpeedFiles files;
  files.directory = tag;
  FSDP_ASSIGN_OR_RETURN(const fs::file_type zero, TypeOfTarget(JoinPath(tag, kDeepSpeedZero)));
  files.is_universal = zero == fs::file_type::directory;
  std::map<int, std::string> model;
  std::map<int, std::string> optim;
  std::optional<std::string> model_prefix;
  std::optional<std::string> optim_prefix;
  bool is_whole = false;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(tag));
  for (const std::string& name : names) {
    if (!IsStatesFile(name)) continue;
    if (files.is_universal && name == kDeepSpeedZero3ModelFile) {
      FSDP_ASSIGN_OR_RETURN(const bool is_copy, IsSameArchive(tag, kDeepSpeedModelFile, name));
      if (is_copy) continue;
    }
    const std::optional<RankName> parsed = ParseRankName(name);
    if (!parsed || parsed->model_parallel != 0 || (parsed->is_optim && !parsed->rank)) return RefuseParallel(tag, name);
    if (!parsed->is_optim) (parsed->rank ? files.is_partitioned : is_whole) = true;
    if (is_whole && files.is_partitioned) {
      return absl::InvalidArgumentError(absl::StrCat(
          tag, " has both ", kDeepSpeedModelFile, " and model files of ranks, of two saves: remove the files of one"));
    }
    FSDP_RETURN_IF_ERROR(
        TakeRank(tag, name, *parsed, parsed->is_optim ? optim : model, parsed->is_optim ? optim_prefix : model_prefix));
  }
  FSDP_ASSIGN_OR_RETURN(files.model, WithoutGaps(tag, model));
  FSDP_ASSIGN_OR_RETURN(files.optim, WithoutGaps(tag, optim));
  if (!files.is_universal && files.model.empty()) {
    return absl::NotFoundError(
        absl::StrCat(JoinPath(tag, kDeepSpeedModelFile),
                     " is missing (of ZeRO 3, zero_pp_rank_0_mp_rank_00_model_states.pt): it has "
                     "the names and shapes"));
  }
  if (files.is_universal && !files.optim.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(tag, " is a universal checkpoint and also has ",
                                                   Quote(files.optim[0]), ", of another save: remove one of the two"));
  }
  return files;
}

absl::Status CheckRecordedName(const std::string& name, const std::string& folder) {
  const std::string recorded = absl::StrCat(folder, ".pt");
  if (recorded == name || !ParseRankName(recorded)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("it was saved as ", Quote(recorded),
                                          ", so it is another file under this name: copy the checkpoint again"));
}

}  // namespace fsdp
