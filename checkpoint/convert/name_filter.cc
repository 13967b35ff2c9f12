// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/name_filter.h"

#include <cctype>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// std::regex recurses as it compiles and as it matches, in the worst case once for each character, so a name in a
// hostile checkpoint could overflow the stack. With these bounds the recursion stays well inside a stack of 8 MiB.
constexpr size_t kMaxPatternBytes = 1024;
constexpr size_t kMaxNameBytes = 1024;

absl::StatusOr<std::regex> Compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression ", Quote(pattern), " has ", pattern.size(),
                                                   " bytes, expected at most ", kMaxPatternBytes));
  }
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(Quote(pattern), " is not a regular expression: ", error.what()));
  }
}

// Calls `match`, which may throw std::regex_error, on a name of bounded length.
template <typename Match>
auto Guarded(const std::string& name, const Match& match) -> absl::StatusOr<decltype(match())> {
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("name ", Quote(name), " has ", name.size(),
                                                   " bytes, too long for regular expressions, which take ",
                                                   kMaxNameBytes));
  }
  try {
    return match();
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("a regular expression cannot be matched against ", Quote(name), ": ", error.what()));
  }
}

// Turns \1 into $1, the spelling that std::regex_replace accepts.
std::string GroupsWithDollar(std::string replacement) {
  for (size_t i = 0; i + 1 < replacement.size(); ++i) {
    if (replacement[i] == '\\' && std::isdigit(static_cast<unsigned char>(replacement[i + 1])) != 0)
      replacement[i] = '$';
  }
  return replacement;
}

}  // namespace

absl::StatusOr<NameFilter> NameFilter::Create(const Patterns& patterns) {
  NameFilter filter;
  for (const std::string& pattern : patterns.include) {
    FSDP_ASSIGN_OR_RETURN(filter.include_.emplace_back(), Compile(pattern));
  }
  for (const std::string& pattern : patterns.exclude) {
    FSDP_ASSIGN_OR_RETURN(filter.exclude_.emplace_back(), Compile(pattern));
  }
  for (const auto& [pattern, replacement] : patterns.rename) {
    FSDP_ASSIGN_OR_RETURN(std::regex regex, Compile(pattern));
    filter.rename_.emplace_back(std::move(regex), GroupsWithDollar(replacement));
  }
  return filter;
}

absl::StatusOr<bool> NameFilter::Keeps(const std::string& name) const {
  if (keeps_all()) return true;
  return Guarded(name, [&] {
    // Exclusion wins over inclusion, so it comes first.
    for (const std::regex& pattern : exclude_) {
      if (std::regex_search(name, pattern)) return false;
    }
    for (const std::regex& pattern : include_) {
      if (std::regex_search(name, pattern)) return true;
    }
    return include_.empty();
  });
}

absl::StatusOr<std::string> NameFilter::Rename(const std::string& name) const {
  std::string renamed = name;
  for (const auto& [pattern, replacement] : rename_) {
    // Guarded checks each intermediate name: a replacement can make it longer than the bound.
    FSDP_ASSIGN_OR_RETURN(renamed, Guarded(renamed, [&, &pattern = pattern, &replacement = replacement] {
                            return std::regex_replace(renamed, pattern, replacement);
                          }));
  }
  return renamed;
}

}  // namespace fsdp
