// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/rank_file_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// "optim_rank_1_of_4.pt": the texts "optim_rank_", "_of_", ".pt", and the numbers 1 and 4 between them.
struct SplitName {
  std::vector<std::string> texts;
  std::vector<int> numbers;
};

// nullopt for a name with a number of more than six digits, such as a date: no rank has it.
std::optional<SplitName> Split(const std::string& name) {
  constexpr size_t kMaxDigits = 6;
  SplitName split;
  size_t at = 0;
  while (true) {
    const size_t first = std::min(name.find_first_of("0123456789", at), name.size());
    split.texts.push_back(name.substr(at, first - at));
    if (first == name.size()) return split;
    at = std::min(name.find_first_not_of("0123456789", first), name.size());
    int number = 0;
    if (at - first > kMaxDigits || !absl::SimpleAtoi(name.substr(first, at - first), &number)) return std::nullopt;
    split.numbers.push_back(number);
  }
}

// "step" of "global_step-": the last word of a text, in lower case.
std::string LastWord(const std::string& text) {
  const auto is_letter = [](char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); };
  const auto end = std::find_if(text.rbegin(), text.rend(), is_letter).base();
  const auto begin = std::find_if_not(std::make_reverse_iterator(end), text.rend(), is_letter).base();
  return absl::AsciiStrToLower(std::string(begin, end));
}

// True for the word before the number of a checkpoint in a series.
bool NumbersCheckpoints(const std::string& word) {
  constexpr std::array kWords = {"checkpoint", "ckpt", "e",         "ep",    "epoch", "epochs",
                                 "it",         "iter", "iteration", "iters", "step",  "steps"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

// The place of the only number that differs between `names`; nullopt if another part differs too.
std::optional<size_t> VaryingNumber(const std::vector<SplitName>& names) {
  std::optional<size_t> varying;
  for (const SplitName& name : names) {
    if (name.texts != names[0].texts) return std::nullopt;
    for (size_t i = 0; i < name.numbers.size(); ++i) {
      if (name.numbers[i] == names[0].numbers[i]) continue;
      if (varying.value_or(i) != i) return std::nullopt;
      varying = i;
    }
  }
  return varying;
}

// False if `name` says that there are more or fewer than `count` files.
bool AllowsCount(const SplitName& name, size_t varying, int count) {
  for (size_t i = 0; i < name.numbers.size(); ++i) {
    const std::string word = LastWord(name.texts[i]);
    if (i != varying && (word == "of" || word == "size") && name.numbers[i] != count) return false;
  }
  return true;
}

// "model-00001-of-00003.safetensors": 1 and 3. A part of one is a whole model.
struct NumberedPart {
  int part = 0;
  int count = 1;
};

NumberedPart NumberedPartOf(const SplitName& name) {
  for (size_t i = 1; i < name.numbers.size(); ++i) {
    if (name.texts[i] == "-of-" && name.texts[i + 1].substr(0, 1) == ".") return {name.numbers[i - 1], name.numbers[i]};
  }
  return {};
}

// The files next to `name` whose names differ from it only in numbers.
std::vector<std::string> LikeNames(const std::string& directory, const SplitName& name) {
  std::vector<std::string> like = PosixFileSystem().List(directory).value_or(std::vector<std::string>());
  const auto is_other = [&](const std::string& other) {
    const std::optional<SplitName> split = Split(other);
    return !split || split->texts != name.texts;
  };
  like.erase(std::remove_if(like.begin(), like.end(), is_other), like.end());
  return like;
}

}  // namespace

std::vector<std::string> RankFileNames(const std::vector<std::string>& names) {
  std::vector<SplitName> splits;
  for (const std::string& name : names) {
    const std::optional<SplitName> split = Split(name);
    if (!split) return {};
    splits.push_back(*split);
  }
  const std::optional<size_t> varying = splits.empty() ? std::nullopt : VaryingNumber(splits);
  if (!varying || NumbersCheckpoints(LastWord(splits[0].texts[*varying]))) return {};
  // Sorted by number and not by name: rank10 must come after rank9.
  std::map<int, std::string> by_number;
  for (size_t i = 0; i < names.size(); ++i) by_number.try_emplace(splits[i].numbers[*varying], names[i]);
  // Numbers are distinct, so the first and the last decide whether there is a gap.
  const auto count = static_cast<int>(names.size());
  if (by_number.size() != names.size() || by_number.begin()->first != 0 || by_number.rbegin()->first != count - 1 ||
      !AllowsCount(splits[0], *varying, count)) {
    return {};
  }
  std::vector<std::string> by_rank;
  for (const auto& [number, name] : by_number) by_rank.push_back(name);
  return by_rank;
}

absl::StatusOr<std::vector<std::string>> RankFilesIn(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, PosixFileSystem().List(directory));
  // DeepSpeed's, which are neither copies nor shards of one dict (foreign/deepspeed).
  const auto is_deepspeeds = [](const std::string& name) {
    return absl::EndsWith(name, "_model_states.pt") || absl::EndsWith(name, "_optim_states.pt");
  };
  if (std::any_of(names.begin(), names.end(), is_deepspeeds)) return std::vector<std::string>();
  names.erase(std::remove_if(names.begin(), names.end(),
                             [](const std::string& name) {
                               return !absl::EndsWith(name, ".pt") && !absl::EndsWith(name, ".pth") &&
                                      !absl::EndsWith(name, ".bin");
                             }),
              names.end());
  return RankFileNames(names);
}

std::string PartNote(const std::string& path) {
  const PathParts parts = SplitPath(path);
  const std::optional<SplitName> name = Split(parts.name);
  if (!name || name->numbers.empty()) return "";
  if (const NumberedPart part = NumberedPartOf(*name); part.count > 1) {
    return absl::StrCat("it is part ", part.part, " of ", part.count, " of a model: give the directory, ",
                        Printable(parts.directory), ", for all of it");
  }
  std::vector<std::string> others = RankFileNames(LikeNames(parts.directory, *name));
  others.erase(std::remove(others.begin(), others.end(), parts.name), others.end());
  if (others.empty()) return "";
  return absl::StrCat(
      "the name differs from ", SomeOf(others),
      " beside it in a number, as the names of the files of several ranks do: if each has a part of the "
      "tensors, this is no whole model");
}

}  // namespace fsdp
