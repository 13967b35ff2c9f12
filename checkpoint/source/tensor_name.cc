// SPDX-License-Identifier: Apache-2.0
//
// Names of tensors are any UTF-8; names of HDF5 links are not: '/' separates groups, and "." and ".." have a meaning in
// paths. Percent-encoding only these, and '%' itself, keeps ordinary names readable and is reversible without a table.
// An escaped link has the true name in an attribute (tree_layout.cc), for readers that do not decode it.
#include "fsdp/checkpoint/source/tensor_name.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/check.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"

namespace fsdp {

// JSON readers and h5py refuse any other text, so one such name would make a whole manifest unreadable.
absl::Status CheckUtf8(const std::string& text, const std::string& what) {
  if (IsUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is not valid UTF-8"));
}

absl::Status CheckTensorName(const std::string& name) {
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("name ", Quote(name), " cannot be stored: ", why));
  };
  if (name.empty()) return refused("it is empty");
  if (static_cast<int64_t>(name.size()) > kMaxTensorNameBytes) {
    return refused(absl::StrCat("it has ", name.size(), " bytes, more than ", kMaxTensorNameBytes));
  }
  if (name.find('\0') != std::string::npos) return refused("it contains NUL");
  if (!IsUtf8(name)) return refused("it is not valid UTF-8");
  return absl::OkStatus();
}

absl::Status CheckStateKey(const StateKey& key) {
  if (key.section == StateKey::Section::kParamGroups) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(CheckTensorName(key.fqn));
  return key.section == StateKey::Section::kOptimState ? CheckTensorName(key.state) : absl::OkStatus();
}

std::string Describe(const StateKey& key) { return absl::StrCat("tensor ", Quote(key.ToString())); }

std::string EscapeLinkName(const std::string& name) {
  if (name == ".") return "%2E";
  if (name == "..") return "%2E%2E";
  return absl::StrReplaceAll(name, {{"%", "%25"}, {"/", "%2F"}});
}

std::string DatasetPath(const StateKey& key) {
  switch (key.section) {
    case StateKey::Section::kModel:
      return absl::StrCat("/model/", EscapeLinkName(key.fqn));
    case StateKey::Section::kOptimState:
      return absl::StrCat("/optim/state/", EscapeLinkName(key.fqn), "/", EscapeLinkName(key.state));
    case StateKey::Section::kParamGroups:
      return "/optim/param_groups";
    case StateKey::Section::kExtra:
      return absl::StrCat("/extra/", EscapeLinkName(key.fqn));
  }
  CheckFailed("not a section of a state dict", __FILE__, __LINE__);
}

}  // namespace fsdp
