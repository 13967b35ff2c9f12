// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/url_password.h"

#include <cstddef>

namespace fsdp {
namespace {

// The end of the host's part of a URL, in prose, in JSON or in HTML too.
constexpr std::string_view kEnds = "/?#\"'`<>\\ \t\r\n";

}  // namespace

std::string HidePasswords(std::string_view text) {
  std::string shown;
  size_t copied = 0;
  for (size_t colon = text.find(":/"); colon != text.npos; colon = text.find(":/", colon + 1)) {
    const bool is_url = text.substr(colon, 3) == "://";
    const size_t begin = colon + (is_url ? 3 : 2);
    const std::string_view authority = text.substr(begin, text.find_first_of(kEnds, begin) - begin);
    const size_t at = authority.rfind('@');
    if (at == authority.npos || (!is_url && authority.substr(0, at).find(':') == authority.npos)) continue;
    shown.append(text.substr(copied, begin - copied)).append("***");
    copied = begin + at;
  }
  return shown.append(text.substr(copied));
}

}  // namespace fsdp
