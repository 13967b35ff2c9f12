// SPDX-License-Identifier: Apache-2.0
//
// A name is parsed by formatting the numbers again and comparing, so exactly the names that we make are recognised, not
// similar ones ("step-1", "rank-0-of-2.h5", a sign, blanks). Retention and cleaning delete by these names, so a name
// that a user chose must not match by accident.
#include "fsdp/checkpoint/native/format/file_names.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr char kStagingInfix[] = ".tmp-";
constexpr char kDeletedInfix[] = ".deleted-";
constexpr char kSetAsideSuffix[] = ".damaged";

constexpr size_t kNonceDigits = 16;

// The X of ".X<infix><nonce>".
std::optional<std::string> NameBefore(const std::string& name, const std::string& infix) {
  const size_t at = name.rfind(infix);
  if (name.empty() || name[0] != '.' || at == std::string::npos || at < 2) return std::nullopt;
  if (!IsNonce(name.substr(at + infix.size()))) return std::nullopt;
  return name.substr(1, at - 1);
}

}  // namespace

std::string StepName(int64_t step) { return absl::StrFormat("%s%08d", kStepPrefix, step); }

std::optional<int64_t> ParseStepName(const std::string& name) {
  if (!absl::StartsWith(name, kStepPrefix)) return std::nullopt;
  int64_t step = 0;
  if (!absl::SimpleAtoi(name.substr(sizeof(kStepPrefix) - 1), &step) || step < 0) return std::nullopt;
  // One name per step: no sign, no blanks, no further zeros.
  if (StepName(step) != name) return std::nullopt;
  return step;
}

std::string RankFileName(int writer, int writers) { return absl::StrFormat("rank-%05d-of-%05d.h5", writer, writers); }

std::optional<RankFile> ParseRankFileName(const std::string& name) {
  RankFile file;
  // sscanf ignores text after the pattern and accepts signs; the comparison below does not.
  if (std::sscanf(name.c_str(), "rank-%d-of-%d.h5", &file.writer, &file.writers) != 2) return std::nullopt;
  const bool is_possible = file.writer >= 0 && file.writer < file.writers && file.writers <= kMaxRankFiles;
  if (!is_possible || RankFileName(file.writer, file.writers) != name) return std::nullopt;
  return file;
}

std::string ParityFileName(int index, int parity) { return absl::StrFormat("parity-%05d-of-%05d.bin", index, parity); }

std::optional<ParityFile> ParseParityFileName(const std::string& name) {
  ParityFile file;
  if (std::sscanf(name.c_str(), "parity-%d-of-%d.bin", &file.index, &file.parity) != 2) return std::nullopt;
  const bool is_possible = file.index >= 0 && file.index < file.parity && file.parity <= kMaxParityFiles;
  if (!is_possible || ParityFileName(file.index, file.parity) != name) return std::nullopt;
  return file;
}

std::string StagingName(const std::string& name, const std::string& nonce) {
  return absl::StrCat(".", name, kStagingInfix, nonce);
}

std::string DeletedName(const std::string& name, const std::string& nonce) {
  return absl::StrCat(".", name, kDeletedInfix, nonce);
}

std::optional<std::string> StagedNameOf(const std::string& name) { return NameBefore(name, kStagingInfix); }

std::optional<std::string> DeletedNameOf(const std::string& name) { return NameBefore(name, kDeletedInfix); }

std::string SetAsideName(const std::string& name, int count) {
  return absl::StrCat(name, kSetAsideSuffix, count > 1 ? absl::StrCat("-", count) : "");
}

bool IsSetAsideName(const std::string& name) {
  const size_t at = name.find(kSetAsideSuffix);
  if (at == std::string::npos || !ParseStepName(name.substr(0, at))) return false;
  const std::string rest = name.substr(at + sizeof(kSetAsideSuffix) - 1);
  int count = 0;
  return rest.empty() || (rest[0] == '-' && absl::SimpleAtoi(rest.substr(1), &count) && count > 1);
}

// The part between the dots of a linked file's name is the step that wrote it.
bool IsRankFileName(const std::string& name) {
  if (ParseRankFileName(name)) return true;
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  return parts.size() == 3 && parts[2] == "h5" && ParseStepName(parts[1]) &&
         ParseRankFileName(absl::StrCat(parts[0], ".h5"));
}

bool IsCheckpointFileName(const std::string& name) {
  return name == kManifestName || name == kCheckpointFileName || IsRankFileName(name) || ParseParityFileName(name);
}

bool IsNonce(const std::string& text) {
  return text.size() == kNonceDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string NewNonce() {
  std::random_device random;
  return absl::StrCat(absl::Hex((uint64_t{random()} << 32) | random(), absl::kZeroPad16));
}

}  // namespace fsdp
