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

namespace fsdp {
namespace {

// The length of the UTF-8 sequence that begins with `lead`; 0 if no sequence does.
int SequenceLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

// The lowest and highest second byte: they exclude overlong forms, surrogates and code points above U+10FFFF.
unsigned char LowestSecond(unsigned char lead) { return lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80; }
unsigned char HighestSecond(unsigned char lead) { return lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF; }

// Well-formed byte sequences, as in table 3-7 of the Unicode Standard. JSON readers and h5py refuse any other text, so
// one such name would make a whole manifest unreadable.
bool IsUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
    const int length = SequenceLength(byte(0));
    if (length == 0 || text.size() - i < static_cast<size_t>(length)) return false;
    if (length > 1 && (byte(1) < LowestSecond(byte(0)) || byte(1) > HighestSecond(byte(0)))) return false;
    for (int k = 2; k < length; ++k) {
      if ((byte(k) & 0xC0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace

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
