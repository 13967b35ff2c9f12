// SPDX-License-Identifier: Apache-2.0
//
// ReadNamedStep takes the two members from the lines that EncodeManifest begins with, because a ROOT may hold a
// thousand manifests of many megabytes. Whoever uses the step reads the manifest whole, with its digest.
#include "fsdp/checkpoint/native/format/named_step.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/path.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// With ".", ".deleted-" and a nonce it is still below the 255 bytes that file systems allow.
constexpr size_t kMaxNameBytes = 200;

// All members before "attributes", with a name of kMaxNameBytes whose bytes are all escaped.
constexpr int64_t kHeadBytes = 4096;

absl::Status Refused(const std::string& name, const std::string& reason) {
  return absl::InvalidArgumentError(absl::StrCat(Quote(name), " cannot be the name of a checkpoint: ", reason));
}

bool IsControl(unsigned char c) { return c < 0x20 || c == 0x7f; }

// The value of member `name` in the lines of `head`, as JSON text; empty if it is not there.
absl::string_view MemberLine(absl::string_view head, absl::string_view name) {
  const std::string begin = absl::StrCat("  \"", name, "\": ");
  for (absl::string_view line : absl::StrSplit(head, '\n')) {
    if (absl::ConsumePrefix(&line, begin)) return absl::StripSuffix(line, ",");
  }
  return {};
}

// True for the status of an open that says that `name` is a file, or a directory that is not a checkpoint.
bool IsNoManifest(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

absl::Status CheckCheckpointName(const std::string& name, int64_t step) {
  if (name == StepName(step)) return absl::OkStatus();
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Refused(name, absl::StrCat("it has ", name.size(), " bytes, expected 1 to ", kMaxNameBytes));
  }
  if (name[0] == '.') return Refused(name, "it begins with a dot, as the hidden directories of a save do");
  if (absl::StrContains(name, '/')) return Refused(name, "it is not one part of a path");
  if (!CheckUtf8(name, "").ok() || std::any_of(name.begin(), name.end(), IsControl)) {
    return Refused(name, "it has a control character, or is not UTF-8");
  }
  if (const auto other = ParseStepName(name)) {
    return Refused(name, absl::StrCat("it is the name of step ", *other, ", and this is step ", step));
  }
  if (IsSetAsideName(name)) return Refused(name, "a step that was set aside has such a name");
  if (IsCheckpointFileName(name)) return Refused(name, "a file of a checkpoint has this name");
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> ReadNamedStep(FileSystem& files, const std::string& directory,
                                                     const std::string& name) {
  if (name.empty() || name[0] == '.' || ParseStepName(name)) return std::nullopt;
  const absl::StatusOr<std::unique_ptr<File>> file = files.Open(JoinPath(JoinPath(directory, name), kManifestName));
  if (IsNoManifest(file.status())) return std::nullopt;
  FSDP_RETURN_IF_ERROR(file.status());
  FSDP_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  std::string head(std::min(size, kHeadBytes), '\0');
  FSDP_RETURN_IF_ERROR((*file)->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(head.data()), head.size())));
  // nlohmann's parser throws by default; the third argument turns that off. A discarded value is neither equal to
  // another nor different from it.
  const auto recorded = nlohmann::json::parse(MemberLine(head, "name"), nullptr, /*allow_exceptions=*/false);
  int64_t step = 0;
  const bool is_ours = MemberLine(head, "format") == "\"fsdp checkpoint\"" && recorded.is_string() && recorded == name;
  if (!is_ours || !absl::SimpleAtoi(MemberLine(head, "step"), &step) || step < 0) {
    return std::nullopt;
  }
  return step;
}

}  // namespace fsdp
