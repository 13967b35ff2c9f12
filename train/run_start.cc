// SPDX-License-Identifier: Apache-2.0
//
// Which checkpoint a run continues from, decided by rank 0 alone, which verifies files, and sent to the others as JSON,
// so that ranks that see a directory at different moments cannot start at different steps.
//
//   --resume=auto  the newest step of checkpoint_dir that verifies. Newer steps that do not verify are `damaged`: kept,
//                  and renamed before this run saves. If none verifies and there are some, the run stops unless
//                  --overwrite is given: starting anew by mistake would cost more than asking.
//   --resume=PATH  that checkpoint, or the newest one in that directory.
//   --resume=none  step 0.
//
// Committed steps beyond the start would be replaced by this run: an error unless --overwrite is given.
#include "fsdp/train/run_start.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/set_aside.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/train/checkpoint_saver.h"
#include "fsdp/train/frozen_parameters.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// Committed steps of checkpoint_dir beyond `step`, whose numbers this run will save too.
absl::StatusOr<std::vector<std::string>> StepsBeyond(const std::string& checkpoint_dir, int64_t step) {
  std::vector<std::string> beyond;
  if (checkpoint_dir.empty()) return beyond;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> committed, ListCheckpoints(checkpoint_dir));
  for (const std::string& name : committed) {
    int64_t number = 0;
    if (absl::SimpleAtoi(name.substr(name.rfind('-') + 1), &number) && number > step) beyond.push_back(name);
  }
  return beyond;
}

absl::Status RefuseSuperseded(const RunStart& start, const TrainOptions& options) {
  if (start.superseded.empty() || options.overwrite) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s holds %s, beyond step %d where this run starts; pass --resume=auto to continue from the newest, "
      "--overwrite to replace them, or another --checkpoint_dir",
      options.checkpoint_dir, absl::StrJoin(start.superseded, ", "), start.step));
}

// Reads step, tokens and frozen parameters from the metadata of `start.checkpoint`. A different schedule of the
// learning rate is a note, not an error: to change it is a common reason to resume.
absl::Status ReadPosition(const TrainOptions& options, const FlatLayout& layout, RunStart& start) {
  FSDP_ASSIGN_OR_RETURN(start.step, CheckpointStep(start.checkpoint, layout));
  FSDP_ASSIGN_OR_RETURN(const StateDict contents, DescribeCheckpoint(start.checkpoint, {.flat_layout = layout}));
  const std::string* tokens_seen = contents.FindText(TokensSeenKey());
  if (tokens_seen != nullptr && !absl::SimpleAtoi(*tokens_seen, &start.tokens_seen)) {
    return absl::DataLossError(
        absl::StrFormat("%s: extra \"tokens_seen\" is \"%s\", expected a number", start.checkpoint, *tokens_seen));
  }
  if (const std::string* frozen = contents.FindText(FrozenKey()); frozen != nullptr) {
    absl::StatusOr<std::vector<std::string>> names = DecodeFrozen(*frozen);
    if (!names.ok()) {
      return Annotate(names.status(), start.checkpoint);
    }
    start.frozen = *std::move(names);
  }
  const std::string* schedule = contents.FindText(LearningRateKey());
  const std::string current = DescribeLearningRate(options.learning_rate);
  if (schedule != nullptr && *schedule != current) {
    start.notes.push_back(
        absl::StrFormat("the learning rate goes on as %s, and not as the checkpoint has it, %s", current, *schedule));
  }
  return absl::OkStatus();
}

// The newest checkpoint of checkpoint_dir that verifies; step 0 when there is none at all.
absl::StatusOr<RunStart> FindNewest(const TrainOptions& options, const FlatLayout& layout) {
  RunStart start;
  if (options.checkpoint_dir.empty()) return start;
  std::vector<std::string> skipped;
  absl::StatusOr<std::string> newest = LatestCheckpoint(options.checkpoint_dir, &skipped);
  for (const std::string& reason : skipped) {
    start.notes.push_back(absl::StrFormat(
        "%s, so it is skipped; when this run saves, it is kept under another name: to continue from it, stop and try "
        "ckpt repair",
        reason));
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<SetAsideStep> aside, ListSetAside(options.checkpoint_dir));
  for (const SetAsideStep& step : aside) {
    start.notes.push_back(
        absl::StrFormat("%s, %d bytes, is kept from a run that could not read it: try ckpt repair, or "
                        "delete it",
                        JoinPath(options.checkpoint_dir, step.name), step.nbytes));
  }
  if (!newest.ok() && !absl::IsNotFound(newest.status())) return newest.status();
  if (newest.ok()) {
    start.checkpoint = *std::move(newest);
    FSDP_RETURN_IF_ERROR(ReadPosition(options, layout, start));
  }
  // Steps beyond the start did not verify, or one of them would be the start. Even --overwrite keeps them, renamed,
  // because a repair may restore them.
  FSDP_ASSIGN_OR_RETURN(start.damaged, StepsBeyond(options.checkpoint_dir, start.step));
  if (start.resumed() || start.damaged.empty() || options.overwrite) return start;
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: no checkpoint verifies: %s; see whether ckpt repair restores one, or pass --overwrite to start "
      "anew and keep them under other names",
      options.checkpoint_dir, absl::StrJoin(skipped, "; ")));
}

absl::StatusOr<RunStart> FindOnRank0(const TrainOptions& options, const FlatLayout& layout) {
  if (options.resume.kind == ResumeChoice::Kind::kAuto) return FindNewest(options, layout);
  RunStart start;
  if (options.resume.kind == ResumeChoice::Kind::kPath) {
    std::vector<std::string> skipped;
    FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(options.resume.path));
    if (driver->traits().is_ours) {
      if (!driver->traits().is_root) {  // the error of a lost manifest names the files that are left
        FSDP_RETURN_IF_ERROR(driver->Describe(options.resume.path, {}).status());
      }
      FSDP_ASSIGN_OR_RETURN(start.checkpoint, LatestCheckpoint(options.resume.path, &skipped));
    } else {
      start.checkpoint = options.resume.path;  // a foreign format, without digests that could be verified now
    }
    for (const std::string& reason : skipped) start.notes.push_back(absl::StrFormat("%s, so it is skipped", reason));
    FSDP_RETURN_IF_ERROR(ReadPosition(options, layout, start));
  }
  FSDP_ASSIGN_OR_RETURN(start.superseded, StepsBeyond(options.checkpoint_dir, start.step));
  FSDP_RETURN_IF_ERROR(RefuseSuperseded(start, options));
  return start;
}

std::string Encode(const RunStart& start) {
  return nlohmann::json{{"step", start.step},
                        {"tokens_seen", start.tokens_seen},
                        {"checkpoint", start.checkpoint},
                        {"frozen", start.frozen},
                        {"notes", start.notes},
                        {"superseded", start.superseded},
                        {"damaged", start.damaged}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<RunStart> Decode(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InternalError("the message of rank 0 about the start of the run is no JSON object");
  RunStart start;
  start.step = json.at("step").get<int64_t>();
  start.tokens_seen = json.at("tokens_seen").get<int64_t>();
  start.checkpoint = json.at("checkpoint").get<std::string>();
  start.frozen = json.at("frozen").get<std::vector<std::string>>();
  start.notes = json.at("notes").get<std::vector<std::string>>();
  start.superseded = json.at("superseded").get<std::vector<std::string>>();
  start.damaged = json.at("damaged").get<std::vector<std::string>>();
  return start;
}

}  // namespace

absl::StatusOr<RunStart> FindRunStart(const TrainOptions& options, const FlatLayout& layout, ProcessGroup& group) {
  absl::StatusOr<RunStart> found = RunStart();
  if (group.rank() == 0) found = FindOnRank0(options, layout);
  FSDP_RETURN_IF_ERROR(AgreeOn(group, found.status()));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        group.GatherBlobs(group.rank() == 0 ? Encode(*found) : ""));
  return Decode(blobs[0]);
}

}  // namespace fsdp
