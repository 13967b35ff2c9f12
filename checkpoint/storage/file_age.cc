// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/file_age.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Duration AgeOf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto changed = fs::last_write_time(path, error);
  return error ? absl::ZeroDuration() : absl::FromChrono(fs::file_time_type::clock::now() - changed);
}

std::string DateText(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::TimeFromTimespec(info.st_mtim), absl::UTCTimeZone());
}

std::string AgeText(absl::Duration age) {
  const absl::Duration length = absl::AbsDuration(age);
  std::string text = absl::StrCat(absl::ToInt64Seconds(length), "s");
  for (const auto& [unit, letter] : {std::pair(absl::Minutes(1), "m"), {absl::Hours(1), "h"}, {absl::Hours(24), "d"}}) {
    if (length >= unit) text = absl::StrCat(length / unit, letter);
  }
  return age <= absl::Seconds(-1) ? absl::StrCat("at a time that is ", text, " after this host's clock")
                                  : absl::StrCat(text, " ago");
}

}  // namespace fsdp
