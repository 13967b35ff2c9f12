// SPDX-License-Identifier: Apache-2.0
//
// ckpt verify, for all formats. The checks depend on the format:
//
//   ours               VerifyCheckpoint: every byte of every file against its digest, and the coverage of every tensor
//   torch archives     VerifySource: the structure, every value readable, CRC-32 of each entry
//   other formats      VerifySource: the structure, every value readable
//
// NaN and infinity are counted on the way and reported, but they are not damage.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/shell_word.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/verify_source.h"
#include "fsdp/checkpoint/native/checkpoint_driver.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/object/remote_files.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// The result of verify, for any format.
struct Verdict {
  std::string path;  // the checkpoint that was verified: a step, if a ROOT was named
  std::string format;
  bool is_ours = true;        // with a digest of every byte
  bool has_checksums = true;  // at least of the payload
  VerifyReport report = {};
  // TensorSource::left_out(), which --skip_links allows; of a ROOT, entries that this user may not read.
  std::vector<std::string> left_out = {};
  absl::Duration elapsed = absl::ZeroDuration();
};

// The file's format was recognised, so a source that cannot be opened is damaged, unless this machine cannot read it
// (VerifyReport::unread), and the error is a problem of the report. Two errors are no verdict. kInvalidArgument: the
// file is a part of a checkpoint, or of a kind that this project refuses, so the command line is wrong. kUnimplemented:
// it is in a form of its format that this release does not read, such as with another codec.
absl::Status VerifyForeign(const std::string& path, const VerifyOptions& options, Verdict& verdict) {
  FSDP_ASSIGN_OR_RETURN(const TensorSourceOptions source_options, SourceOptionsFromFlags());
  const absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenTensorSource(path, source_options);
  if (absl::IsInvalidArgument(source.status()) || absl::IsUnimplemented(source.status())) return source.status();
  if (!source.ok()) {
    verdict.report.AddProblem(WithMessage(source.status(), WithFlagNames(source.status().message())));
    return absl::OkStatus();
  }
  FSDP_ASSIGN_OR_RETURN(verdict.report, VerifySource(**source, options));
  verdict.has_checksums = (*source)->has_checksums();
  verdict.left_out = (*source)->left_out();
  return absl::OkStatus();
}

// Of a run the newest step that is complete. A damaged manifest is a problem of the report.
absl::StatusOr<Verdict> VerifyRemote(const std::string& url, VerifyOptions options) {
  const absl::Time start = SteadyNow();
  FSDP_ASSIGN_OR_RETURN(RemoteLocation remote, FindRemote(url));
  Verdict verdict = {.path = remote.store->UrlOf(remote.step), .format = CheckpointDriver().name()};
  const absl::StatusOr<std::unique_ptr<RemoteFiles>> files = RemoteFiles::Open(std::move(remote.store), remote.step);
  if (absl::IsDataLoss(files.status())) {
    verdict.report.AddProblem(files.status());
    return verdict;
  }
  FSDP_RETURN_IF_ERROR(files.status());
  options.file_system = files->get();
  FSDP_ASSIGN_OR_RETURN(verdict.report, VerifyCheckpoint(verdict.path, options));
  verdict.elapsed = SteadyNow() - start;
  return verdict;
}

// An entry of a ROOT may be its newest step. A directory of another user usually is not.
void AddUnread(const std::vector<UnreadEntry>& unread, Verdict& verdict) {
  for (const UnreadEntry& entry : unread) {
    if (absl::IsPermissionDenied(entry.status)) {
      verdict.left_out.push_back(entry.ToString());
    } else {
      verdict.report.AddProblem(absl::UnavailableError(entry.ToString()));
    }
  }
}

absl::StatusOr<Verdict> Verify(const std::string& path, Progress& progress) {
  VerifyOptions options;
  options.count_nonfinite = true;
  options.progress = progress.callback();
  if (IsS3Url(path)) return VerifyRemote(path, options);
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  const FormatTraits& traits = driver->traits();
  Verdict verdict = {.path = path, .format = driver->name(), .is_ours = traits.is_ours};
  const absl::Time start = SteadyNow();
  if (!traits.is_ours) {
    verdict.has_checksums = false;
    FSDP_RETURN_IF_ERROR(VerifyForeign(path, options, verdict));
  } else {
    if (traits.is_root) {
      // The newest step, not the newest that verifies: it may be the damaged one that the user asks about.
      std::vector<UnreadEntry> unread;
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(path, &unread));
      verdict.path = absl::StrCat(path, "/", steps.back());
      FSDP_ASSIGN_OR_RETURN(verdict.report, VerifyCheckpoint(verdict.path, options));
      AddUnread(unread, verdict);
    } else {
      FSDP_ASSIGN_OR_RETURN(verdict.report, VerifyCheckpoint(verdict.path, options));
    }
  }
  verdict.elapsed = SteadyNow() - start;
  return verdict;
}

// A checkpoint of a few bytes may take less than the clock's resolution.
double BytesPerSecond(const Verdict& verdict) {
  return static_cast<double>(verdict.report.bytes) / std::max(absl::ToDoubleSeconds(verdict.elapsed), 1e-6);
}

NonFinite TotalOf(const VerifyReport& report) {
  NonFinite total;
  for (const auto& tensor : report.nonfinite) total.Add(tensor.count);
  return total;
}

std::string ToJson(const Verdict& verdict) {
  const VerifyReport& report = verdict.report;
  Json json;
  json["path"] = verdict.path;
  json["ok"] = report.problems.empty();
  json["format"] = verdict.format;
  json["digests"] = verdict.is_ours;
  json["checksums"] = verdict.has_checksums;
  json["files"] = verdict.is_ours ? Json(report.files) : Json();
  json["tensors"] = report.tensors;
  json["bytes"] = report.bytes;
  json["seconds"] = absl::ToDoubleSeconds(verdict.elapsed);
  json["bytes_per_second"] = BytesPerSecond(verdict);
  json["nan"] = TotalOf(report).nan;
  json["inf"] = TotalOf(report).inf;
  json["nonfinite"] = Json::array();
  for (const auto& [name, count] : report.nonfinite) {
    json["nonfinite"].push_back({{"tensor", name}, {"nan", count.nan}, {"inf", count.inf}});
  }
  json["not_wholly_read"] = Json::array();
  for (const auto& [name, read, unread] : report.partly_read) {
    json["not_wholly_read"].push_back({{"tensor", name}, {"read", read}, {"unread", unread}});
  }
  json["left_out"] = verdict.left_out;
  if (!report.problems.empty()) json["problem"] = report.problems[0];
  json["problems"] = report.problems;
  json["unread"] = report.unread;
  json["damage"] = Json::array();
  for (const auto& [file, range, what] : report.damage) {
    json["damage"].push_back({{"file", file}, {"begin", range.offset}, {"end", range.end()}, {"what", what}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The sentence claims no more than the format allows to be checked.
std::string Conclusion(const Verdict& verdict) {
  if (verdict.is_ours) return "every digest matches";
  if (const size_t tensors = verdict.report.partly_read.size(); tensors > 0) {
    return absl::StrCat("the structure is sound, but ", Counted(tensors, "tensor"), tensors == 1 ? " was" : " were",
                        " not wholly read");
  }
  if (verdict.has_checksums) return "the structure is sound, and every CRC-32 matches";
  return absl::StrCat("the structure is sound; ", verdict.format, " has no digests, so values cannot be checked");
}

// Only the first tensors: in a model that has diverged every tensor has such values. --json lists all.
void PrintNonFinite(const VerifyReport& report) {
  constexpr size_t kNamed = 16;
  for (size_t i = 0; i < std::min(kNamed, report.nonfinite.size()); ++i) {
    const auto& [name, count] = report.nonfinite[i];
    Print("not finite: %s: %d NaN, %d infinite\n", Printable(name), count.nan, count.inf);
  }
  if (report.nonfinite.size() <= kNamed) return;
  const NonFinite total = TotalOf(report);
  Print("not finite: %d more tensors; in all %d NaN, %d infinite\n", report.nonfinite.size() - kNamed, total.nan,
        total.inf);
}

// Listed like the tensors that are not finite: a NaN in one of these may have been missed.
void PrintNotWhollyRead(const VerifyReport& report) {
  constexpr size_t kNamed = 16;
  const size_t named = std::min(kNamed, report.partly_read.size());
  for (size_t i = 0; i < named; ++i) {
    const auto& [name, read, unread] = report.partly_read[i];
    Print("not wholly read: %s: %d elements of %d\n", Printable(name), read, read + unread);
  }
  if (report.partly_read.size() == named) return;
  Print("not wholly read: %d more tensors\n", report.partly_read.size() - named);
}

void PrintText(const Verdict& verdict, const std::string& asked_for) {
  const VerifyReport& report = verdict.report;
  if (verdict.path != asked_for) Print("%s: the newest step is %s\n", asked_for, verdict.path);
  for (const std::string& problem : report.problems) {
    if (std::count(report.unread.begin(), report.unread.end(), problem) != 0) {
      Print("not read: %s\n", problem);
    } else {
      PrintAlarm("damaged: %s\n", problem);
    }
  }
  for (const std::string& left_out : verdict.left_out) Print("note: left out: %s\n", left_out);
  PrintNonFinite(report);
  PrintNotWhollyRead(report);
  if (!report.problems.empty()) return;
  Print("%s: %s, %s at %s/s: %s\n", verdict.path, Counted(report.tensors, "tensor"),
        FormatBytes(static_cast<double>(report.bytes)), FormatBytes(BytesPerSecond(verdict)), Conclusion(verdict));
}

// What to do about damage; empty if there is nothing but another copy.
std::string Remedy(const Verdict& verdict) {
  if (!verdict.is_ours) return "";
  if (IsS3Url(verdict.path)) return "; \"ckpt push --force\" of a whole copy replaces it";
  return absl::StrCat("; \"ckpt repair ", ShellWord(verdict.path), " --dry_run\" says what can be made again");
}

// The last line, about the problems of the report.
absl::Status Failure(const Verdict& verdict) {
  const VerifyReport& report = verdict.report;
  const int64_t damaged = std::ssize(report.problems) - std::ssize(report.unread);
  if (damaged == 0) {
    return absl::UnavailableError(absl::StrCat(
        verdict.path, " was not wholly read, and no damage was found: ", Counted(std::ssize(report.unread), "problem"),
        " of this machine or program"));
  }
  return absl::DataLossError(
      absl::StrCat(verdict.path, " is damaged: ", Counted(damaged, "problem"),
                   report.unread.empty()
                       ? ""
                       : absl::StrCat(", and was not wholly read: ", Counted(std::ssize(report.unread), "problem")),
                   Remedy(verdict)));
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
      // With --json there is always one object, also for a path that is not a checkpoint.
      Verdict nothing = {.path = path, .format = "", .is_ours = false, .has_checksums = false};
      nothing.report.AddProblem(WithMessage(verdict.status(), WithFlagNames(verdict.status().message())));
      Print("%s", ToJson(nothing));
    }
    return ReportFailure("ckpt verify", verdict.status());
  }
  if (absl::GetFlag(FLAGS_json)) {
    Print("%s", ToJson(*verdict));
  } else {
    PrintText(*verdict, path);
  }
  return verdict->report.problems.empty() ? kExitDone : ReportFailure("ckpt verify", Failure(*verdict));
}

}  // namespace fsdp
