// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/c_api/c_status.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/url_password.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {
namespace {

std::string& LastMessage() {
  // Per thread, so that a message stays valid until the thread's own next failure, as the header promises.
  static thread_local std::string message;
  return message;
}

bool IsDType(int32_t dtype) { return dtype >= 0 && dtype < static_cast<int32_t>(AllDTypes().size()); }

}  // namespace

// The codes are absl's; a code that is not in the header becomes FSDP_UNKNOWN.
int32_t CodeOf(const absl::Status& status) {
  if (status.ok()) return FSDP_OK;
  // A program prints it as it is, and names in it may be of a file that others made.
  LastMessage() = EscapeText(HidePasswords(std::string(status.message())), "\n\t\"'\\");
  const int code = static_cast<int>(status.code());
  return code > FSDP_OK && code <= FSDP_DATA_LOSS ? code : FSDP_UNKNOWN;
}

absl::Status CheckPointer(const void* pointer, const char* name) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

std::string NameOptionsOfC(absl::string_view text, OptionNames names) { return absl::StrReplaceAll(text, names); }

absl::Status NameOptionsOfC(const absl::Status& status, OptionNames names) {
  return status.ok() ? status : WithMessage(status, NameOptionsOfC(status.message(), names));
}

absl::StatusOr<std::vector<TensorRole>> RolesOf(const char* map) {
  std::vector<TensorRole> roles;
  if (map == nullptr) return roles;
  for (const absl::string_view line : absl::StrSplit(map, '\n', absl::SkipEmpty())) {
    absl::StatusOr<TensorRole> role = ParseTensorRole(std::string(line));
    if (!role.ok()) return Annotate(role.status(), "options->map");
    roles.push_back(*std::move(role));
  }
  return roles;
}

absl::Status GiveString(const std::string& text, char** out) {
  if (out == nullptr) return absl::OkStatus();
  // malloc, not new: a program may replace operator new, and fsdp_free calls free.
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  if (*out == nullptr) return absl::ResourceExhaustedError("out of memory");
  std::memcpy(*out, text.c_str(), text.size() + 1);
  return absl::OkStatus();
}

}  // namespace fsdp

int32_t fsdp_checkpoint_abi_version(void) { return FSDP_CHECKPOINT_ABI_VERSION; }

const char* fsdp_error_message(void) { return fsdp::LastMessage().c_str(); }

int64_t fsdp_dtype_size(int32_t dtype) {
  return fsdp::IsDType(dtype) ? fsdp::SizeOf(static_cast<fsdp::DType>(dtype)) : 0;
}

// Names of dtypes are literals, so they end with NUL.
const char* fsdp_dtype_name(int32_t dtype) {
  return fsdp::IsDType(dtype) ? fsdp::DTypeName(static_cast<fsdp::DType>(dtype)).data() : nullptr;
}

void fsdp_free(char* string) { std::free(string); }
