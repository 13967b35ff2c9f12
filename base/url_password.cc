// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/url_password.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <utility>

namespace fsdp {
namespace {

// The end of the host's part of a URL, in prose, in JSON or in HTML too.
constexpr std::string_view kEnds = "/?#\"'`<>\\ \t\r\n";

// The end of a parameter's value. HTML writes & as &amp;
constexpr std::string_view kValueEnds = "&;#\"'`<>\\ \t\r\n";

// The end of a sentence, and no part of a value that is a secret.
constexpr std::string_view kPunctuation = ":,.)";

bool IsOfName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.'; }

// The names by which stores and hubs call what gives access: X-Amz-Signature, X-Goog-Credential, sig, access_token.
bool IsSecretName(std::string_view name) {
  constexpr std::array<std::string_view, 14> kSecretEnds = {
      "signature",  "credential", "credentials", "token", "secret",      "password", "passwd",
      "passphrase", "pwd",        "key",         "keyid", "key-pair-id", "auth",     "jwt"};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "sig" || lower == "pass" ||
         std::any_of(kSecretEnds.begin(), kSecretEnds.end(), [&](std::string_view end) {
           return lower.size() >= end.size() && lower.compare(lower.size() - end.size(), end.size(), end) == 0;
         });
}

// nullopt if nothing is hidden, as of HideParameters.
std::optional<std::string> HideUsers(std::string_view text) {
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
  if (copied == 0) return std::nullopt;
  return shown.append(text.substr(copied));
}

// Of "?name=value" and "&name=value". Without a scheme too: a path is named by its last part.
std::optional<std::string> HideParameters(std::string_view text) {
  std::string shown;
  size_t copied = 0;
  for (size_t equals = text.find('='); equals != text.npos; equals = text.find('=', equals + 1)) {
    size_t begin = equals;
    while (begin > copied && IsOfName(text[begin - 1])) --begin;
    const bool is_parameter = begin > 0 && std::string_view("?&;#").find(text[begin - 1]) != text.npos;
    if (!is_parameter || !IsSecretName(text.substr(begin, equals - begin))) continue;
    std::string_view value = text.substr(equals + 1, text.find_first_of(kValueEnds, equals + 1) - (equals + 1));
    while (!value.empty() && kPunctuation.find(value.back()) != kPunctuation.npos) value.remove_suffix(1);
    if (value.empty()) continue;
    shown.append(text.substr(copied, equals + 1 - copied)).append("***");
    copied = equals + 1 + value.size();
    equals = copied - 1;
  }
  if (copied == 0) return std::nullopt;
  return shown.append(text.substr(copied));
}

}  // namespace

std::optional<std::string> FindAndHidePasswords(std::string_view text) {
  std::optional<std::string> shown = HideUsers(text);
  std::optional<std::string> without_parameters = HideParameters(shown ? *shown : text);
  return without_parameters ? std::move(without_parameters) : std::move(shown);
}

std::string HidePasswords(std::string_view text) {
  std::optional<std::string> shown = FindAndHidePasswords(text);
  return shown ? *std::move(shown) : std::string(text);
}

}  // namespace fsdp
