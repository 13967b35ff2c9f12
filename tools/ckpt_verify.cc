// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_verify.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/latest.h"
#include "checkpoint/path_kind.h"
#include "checkpoint/safetensors_source.h"
#include "checkpoint/verify.h"
#include "nlohmann/json.hpp"
#include "tools/ckpt_flags.h"
#include "tools/ckpt_report.h"
#include "tools/progress.h"

namespace fsdp {
namespace {

// What verify found out, whatever the format.
struct Verdict {
  std::string path;  // what was verified: the step, when a ROOT was named
  std::string format;
  bool has_digests = true;
  VerifyReport report;
};

constexpr int64_t kPieceBytes = int64_t{8} << 20;

// Reads every element, which also checks that each bool is one.
absl::Status ReadAll(const TensorSource& source, VerifyReport& report, Progress& progress) {
  int64_t total = 0;
  for (const auto& [key, value] : source.contents().entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    total += tensor.shape.numel() * SizeOf(tensor.dtype);
  }
  const std::unique_ptr<char[]> buffer(new char[kPieceBytes]);
  for (const auto& [key, value] : source.contents().entries()) {
    const auto& tensor = std::get<ShardedTensor>(value);
    const int64_t step = kPieceBytes / SizeOf(tensor.dtype);
    ++report.tensors;
    for (int64_t begin = 0; begin < tensor.shape.numel(); begin += step) {
      const Interval piece = {begin, std::min(begin + step, tensor.shape.numel())};
      RETURN_IF_ERROR(source.Read(key, piece, buffer.get()));
      report.bytes += piece.size() * SizeOf(tensor.dtype);
      progress.Update(report.bytes, total);
    }
  }
  return absl::OkStatus();
}

Verdict VerifySafetensors(const std::string& path, Progress& progress) {
  Verdict verdict = {path, "safetensors", /*has_digests=*/false, {}};
  const absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenSafetensorsSource(path);
  const absl::Status status = source.ok() ? ReadAll(**source, verdict.report, progress) : source.status();
  if (!status.ok()) verdict.report.problems.emplace_back(status.message());
  return verdict;
}

absl::StatusOr<Verdict> Verify(const std::string& path, Progress& progress) {
  ASSIGN_OR_RETURN(const PathKind kind, RecognisePath(path));
  if (kind == PathKind::kSafetensorsFile || kind == PathKind::kHuggingFaceDirectory) {
    return VerifySafetensors(path, progress);
  }
  Verdict verdict = {path, "hdf5", /*has_digests=*/true, {}};
  if (kind == PathKind::kRoot) {
    ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(path));
    verdict.path = absl::StrCat(path, "/", steps.back());
  }
  VerifyOptions options;
  options.progress = progress.callback();
  ASSIGN_OR_RETURN(verdict.report, VerifyCheckpoint(verdict.path, options));
  return verdict;
}

std::string ToJson(const Verdict& verdict) {
  nlohmann::ordered_json json;
  json["path"] = verdict.path;
  json["ok"] = verdict.report.problems.empty();
  json["format"] = verdict.format;
  json["digests"] = verdict.has_digests;
  if (verdict.format == "hdf5") json["files"] = verdict.report.files;
  json["tensors"] = verdict.report.tensors;
  json["bytes"] = verdict.report.bytes;
  json["problems"] = verdict.report.problems;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void PrintText(const Verdict& verdict, const std::string& asked_for) {
  const VerifyReport& report = verdict.report;
  if (verdict.path != asked_for) std::printf("%s: the newest step is %s\n", asked_for.c_str(), verdict.path.c_str());
  for (const std::string& problem : report.problems) std::printf("damaged: %s\n", problem.c_str());
  if (!report.problems.empty()) return;
  std::printf("%s: %lld tensors, %s: %s\n", verdict.path.c_str(), static_cast<long long>(report.tensors),
              FormatBytes(static_cast<double>(report.bytes)).c_str(),
              verdict.has_digests ? "every digest matches"
                                  : "the structure is sound; safetensors has no digests, so values cannot be checked");
}

}  // namespace

int RunVerify(const CommandLine& line) {
  const std::string& path = line.operands[0];
  absl::StatusOr<Verdict> verdict;
  {
    Progress progress("verify");
    verdict = Verify(path, progress);
  }
  if (!verdict.ok()) {
    if (absl::GetFlag(FLAGS_json)) {
      std::puts(ToJson({path, "", false, {0, 0, 0, {std::string(verdict.status().message())}}}).c_str());
    }
    return ReportFailure("ckpt verify", verdict.status());
  }
  if (absl::GetFlag(FLAGS_json)) {
    std::puts(ToJson(*verdict).c_str());
  } else {
    PrintText(*verdict, path);
  }
  const size_t problems = verdict->report.problems.size();
  if (problems == 0) return kExitDone;
  return ReportFailure("ckpt verify", absl::DataLossError(absl::StrCat(verdict->path, " is damaged: ", problems,
                                                                       problems == 1 ? " problem" : " problems")));
}

}  // namespace fsdp
