// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/source_layout.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"

namespace fsdp {

absl::StatusOr<TensorRole> ParseTensorRole(const std::string& text) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat(Quote(text), ", expected FROM=ROLE or FROM=ROLE.PREFIX, ROLE being model, optim or extra"));
  const size_t equals = text.rfind('=');  // a key may hold one; roles do not
  if (equals == text.npos || equals == 0) return bad;
  TensorRole role = {.branch = text.substr(0, equals)};
  const size_t dot = text.find('.', equals);
  const std::string name = text.substr(equals + 1, dot == text.npos ? text.npos : dot - equals - 1);
  if (dot != text.npos) role.prefix = text.substr(dot + 1) + ".";
  if (role.prefix == ".") return bad;
  if (name == "extra" && role.prefix.empty()) {
    role.section = TensorRole::Section::kExtra;
  } else if (name == "optim") {
    role.section = TensorRole::Section::kOptim;
  } else if (name != "model") {
    return bad;
  }
  return role;
}

absl::StatusOr<std::vector<TensorRole>> RolesOfMapFlag(const std::vector<std::string>& texts) {
  std::vector<TensorRole> roles;
  for (const std::string& text : texts) {
    absl::StatusOr<TensorRole> role = ParseTensorRole(text);
    if (!role.ok()) return Annotate(role.status(), "--map");
    roles.push_back(*std::move(role));
  }
  return roles;
}

}  // namespace fsdp
