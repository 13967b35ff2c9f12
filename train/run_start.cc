// SPDX-License-Identifier: Apache-2.0
//
// Only rank 0 decides which checkpoint a run continues from, since it verifies files, and sends the result to the
// others as JSON, so that ranks that see a directory at different moments cannot start at different steps.
//
//   --resume=auto  the newest step that verifies in checkpoint_dir and in the object store of --upload; a step of the
//                  store is first downloaded to checkpoint_dir. Newer steps that do not verify are `damaged`: kept,
//                  and renamed before this run saves. If none verifies although there are some, the run stops unless
//                  --overwrite is given: a fresh start by mistake would cost more than a question.
//   --resume=PATH  that checkpoint, or the newest one in that directory.
//   --resume=none  step 0.
//
// Committed steps beyond the start, here or in the object store, would be replaced by this run: an error unless
// --overwrite is given.
#include "fsdp/train/run_start.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/named_step.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/native/set_aside.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/train/checkpoint_saver.h"
#include "fsdp/train/frozen_parameters.h"
#include "fsdp/train/lr_scheduler_state.h"
#include "fsdp/train/remote_steps.h"
#include "fsdp/train/run_attributes.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// Steps of checkpoint_dir beyond the start, whose numbers this run will save too: those for which `prove` shows that
// they are from this project. Anything else of such a name must not be renamed or deleted: it gives a note, or an error
// if this run reaches its number.
absl::StatusOr<std::vector<std::string>> StepsBeyond(const TrainOptions& options,
                                                     absl::Status (*prove)(FileSystem&, const std::string&),
                                                     RunStart& start) {
  std::vector<std::string> beyond;
  if (options.checkpoint_dir.empty()) return beyond;
  FSDP_ASSIGN_OR_RETURN(const std::vector<RootStep> steps, ListSteps(options.checkpoint_dir));
  for (const auto& [step, name] : steps) {
    if (step <= start.step) continue;
    // By its contents: the name could be a coincidence.
    const std::string path = JoinPath(options.checkpoint_dir, name);
    const absl::Status proof = prove(PosixFileSystem(), path);
    if (proof.ok()) {
      beyond.push_back(name);
    } else if (step > options.learning_rate.steps || name != StepName(step)) {
      start.notes.push_back(absl::StrFormat("%s is left in place: %s", path, proof.message()));
    } else if (!absl::IsFailedPrecondition(proof)) {
      return Annotate(proof, absl::StrCat(path, " has the name of a step that this run saves, and cannot be read"));
    } else {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s has the name of a step that this run saves, but is not a checkpoint of this project: %s; "
                          "move it, or choose another --checkpoint_dir",
                          path, proof.message()));
    }
  }
  return beyond;
}

absl::Status RefuseSuperseded(const RunStart& start, const TrainOptions& options) {
  if (start.superseded.empty() || options.overwrite) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s holds %s, beyond step %d at which this run starts; pass --resume=auto to continue from the newest, "
      "--overwrite to replace them, or another --checkpoint_dir",
      options.checkpoint_dir, absl::StrJoin(start.superseded, ", "), start.step));
}

// A checkpoint beyond the last step is refused instead of counted as done: an --export would be a model of more steps
// than requested.
absl::Status CheckSteps(const TrainOptions& options, const RunStart& start) {
  const int64_t steps = options.learning_rate.steps;
  if (start.step <= steps) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--steps=%d: %s holds the state after %d steps, expected at least --steps=%d, steps before the "
                      "resume included; to train %d steps from the beginning, pass --resume=none and another "
                      "--checkpoint_dir",
                      steps, start.checkpoint, start.step, start.step, steps));
}

// Reads step, tokens, frozen parameters and attributes from the metadata of `start.checkpoint`. A checkpoint without
// attributes still has a text about the learning rate: a different schedule gives a note.
absl::Status ReadPosition(const TrainOptions& options, const FlatLayout& layout, RunStart& start) {
  // Before anything else is read: the number of steps may make the checkpoint useless.
  const std::vector<TensorRole> map = MapOfResume(options);
  FSDP_ASSIGN_OR_RETURN(start.step, CheckpointStep(start.checkpoint, layout, map));
  FSDP_RETURN_IF_ERROR(CheckSteps(options, start));
  std::vector<std::string> found;
  FSDP_ASSIGN_OR_RETURN(const StateDict contents,
                        DescribeCheckpoint(start.checkpoint, {.flat_layout = layout, .map = map, .notes = &found}));
  for (const std::string& note : found) start.notes.push_back(absl::StrCat(start.checkpoint, ": ", note));
  start.saved = contents.attributes;
  if (start.saved.empty()) start.notes.push_back(NotRecorded(start.checkpoint));
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
  if (const std::string* scaler = contents.FindText(GradScalerKey()); scaler != nullptr) start.grad_scaler = *scaler;
  if (const std::string* scheduler = contents.FindText(LrSchedulerKey()); scheduler != nullptr) {
    for (const std::string& change : DescribeSchedulerChange(options.learning_rate, start.step, *scheduler)) {
      start.notes.push_back(absl::StrCat(start.checkpoint, ": ", change));
    }
  }
  const std::string* schedule = contents.FindText(LearningRateKey());
  const std::string current = DescribeLearningRate(options.learning_rate);
  if (start.saved.empty() && schedule != nullptr && *schedule != current) {
    start.notes.push_back(
        absl::StrFormat("the learning rate continues as %s, not as in the checkpoint, %s", current, *schedule));
  }
  return absl::OkStatus();
}

// The step of a checkpoint that LatestCheckpoint has found in a ROOT.
absl::StatusOr<int64_t> StepInRoot(const std::string& path) {
  const PathParts parts = SplitPath(path);
  if (const auto step = ParseStepName(parts.name)) return *step;
  FSDP_ASSIGN_OR_RETURN(const auto named, ReadNamedStep(PosixFileSystem(), parts.directory, parts.name));
  return named.value_or(0);
}

// The newest checkpoint of checkpoint_dir that verifies; step 0 if there is no checkpoint.
absl::StatusOr<RunStart> FindNewest(const TrainOptions& options, const FlatLayout& layout, RemoteSteps& remote) {
  RunStart start;
  if (options.checkpoint_dir.empty()) return start;
  std::vector<std::string> skipped;
  absl::StatusOr<std::string> newest = LatestCheckpoint(options.checkpoint_dir, &skipped);
  for (const std::string& reason : skipped) {
    start.notes.push_back(absl::StrFormat("%s, so it is skipped", reason));
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<SetAsideStep> aside, ListSetAside(options.checkpoint_dir));
  for (const SetAsideStep& step : aside) {
    start.notes.push_back(
        absl::StrFormat("%s, %d bytes, is kept from a run that could not read it: try ckpt repair, or "
                        "delete it",
                        JoinPath(options.checkpoint_dir, step.name), step.nbytes));
  }
  if (!newest.ok() && !absl::IsNotFound(newest.status())) return newest.status();
  // -1, so that step 0 of the store counts as newer.
  int64_t local = -1;
  if (newest.ok()) {
    FSDP_ASSIGN_OR_RETURN(local, StepInRoot(*newest));
  }
  FSDP_ASSIGN_OR_RETURN(std::string fetched, remote.Fetch(local, start.notes));
  if (!fetched.empty()) newest = std::move(fetched);
  if (newest.ok()) {
    start.checkpoint = *std::move(newest);
    FSDP_RETURN_IF_ERROR(ReadPosition(options, layout, start));
  }
  // Steps beyond the start did not verify, or one of them would be the start. Even --overwrite keeps them, under other
  // names, because a repair may restore them.
  FSDP_ASSIGN_OR_RETURN(start.damaged, StepsBeyond(options, ProveLeftover, start));
  for (const std::string& name : start.damaged) {
    start.notes.push_back(
        absl::StrFormat("%s: when this run saves, it is kept under another name: to continue from it, stop and try "
                        "ckpt repair",
                        name));
  }
  if (start.resumed() || start.damaged.empty() || options.overwrite) return start;
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: no checkpoint verifies: %s; see whether ckpt repair restores one, or pass --overwrite to start "
      "anew and keep them under other names",
      options.checkpoint_dir, absl::StrJoin(skipped, "; ")));
}

absl::StatusOr<RunStart> FindOnRank0(const TrainOptions& options, const FlatLayout& layout) {
  FSDP_ASSIGN_OR_RETURN(RemoteSteps remote, RemoteSteps::Open(options));
  if (options.resume.kind == ResumeChoice::Kind::kAuto) {
    FSDP_ASSIGN_OR_RETURN(RunStart start, FindNewest(options, layout, remote));
    // After the search, which may have continued from one of the store's steps.
    FSDP_RETURN_IF_ERROR(remote.RefuseBeyond(start.step));
    return start;
  }
  RunStart start;
  if (options.resume.kind == ResumeChoice::Kind::kPath) {
    std::vector<std::string> skipped;
    FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(options.resume.path));
    if (driver->traits().is_ours) {
      if (!driver->traits().is_root) {  // the error of a lost manifest names the files that are left
        FSDP_RETURN_IF_ERROR(NativeCheckpointStep(options.resume.path).status());
      }
      FSDP_ASSIGN_OR_RETURN(start.checkpoint, LatestCheckpoint(options.resume.path, &skipped));
    } else {
      // Of a foreign format, without digests to verify now; in a ROOT, the checkpoint that is the newest now.
      FSDP_ASSIGN_OR_RETURN(start.checkpoint, driver->Resolve(options.resume.path, &skipped));
    }
    for (const std::string& reason : skipped) start.notes.push_back(absl::StrFormat("%s, so it is skipped", reason));
    FSDP_RETURN_IF_ERROR(ReadPosition(options, layout, start));
  }
  FSDP_ASSIGN_OR_RETURN(start.superseded, StepsBeyond(options, CheckIsOurCheckpoint, start));
  FSDP_RETURN_IF_ERROR(RefuseSuperseded(start, options));
  FSDP_RETURN_IF_ERROR(remote.RefuseBeyond(start.step));
  return start;
}

// Reads the attributes of the model of --init_from, if it is a checkpoint of ours. The load itself reports any error of
// the path.
void ReadInitialModel(const TrainOptions& options, RunStart& start) {
  const absl::StatusOr<const FormatDriver*> driver = FindFormat(options.init_from);
  if (!driver.ok() || !(*driver)->traits().is_ours) return;
  const absl::StatusOr<StateDict> contents = DescribeCheckpoint(options.init_from, {.model_only = true});
  if (!contents.ok()) return;
  start.saved = ModelAttributes(contents->attributes);
  if (start.saved.empty()) start.notes.push_back(NotRecorded(options.init_from));
}

std::string Encode(const RunStart& start) {
  return nlohmann::json{{"step", start.step},
                        {"tokens_seen", start.tokens_seen},
                        {"checkpoint", start.checkpoint},
                        {"saved", nlohmann::json::parse(EncodeAttributes(start.saved, ""))},
                        {"frozen", start.frozen},
                        {"grad_scaler", start.grad_scaler},
                        {"notes", start.notes},
                        {"superseded", start.superseded},
                        {"damaged", start.damaged}}  // Paths and notes need not be UTF-8, but JSON must be.
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<RunStart> Decode(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InternalError("the message of rank 0 about the start of the run is not a JSON object");
  RunStart start;
  start.step = json.at("step").get<int64_t>();
  start.tokens_seen = json.at("tokens_seen").get<int64_t>();
  start.checkpoint = json.at("checkpoint").get<std::string>();
  FSDP_ASSIGN_OR_RETURN(start.saved, DecodeAttributes(json.at("saved")));
  start.frozen = json.at("frozen").get<std::vector<std::string>>();
  start.grad_scaler = json.at("grad_scaler").get<std::string>();
  start.notes = json.at("notes").get<std::vector<std::string>>();
  start.superseded = json.at("superseded").get<std::vector<std::string>>();
  start.damaged = json.at("damaged").get<std::vector<std::string>>();
  return start;
}

}  // namespace

std::vector<TensorRole> MapOfResume(const TrainOptions& options) {
  return options.resume.kind == ResumeChoice::Kind::kPath ? options.map : std::vector<TensorRole>();
}

absl::StatusOr<RunStart> FindRunStart(const TrainOptions& options, const FlatLayout& layout, ProcessGroup& group) {
  absl::StatusOr<RunStart> found = RunStart();
  if (group.rank() == 0) found = FindOnRank0(options, layout);
  if (group.rank() == 0 && found.ok() && !found->resumed()) ReadInitialModel(options, *found);
  // An error of rank 0 must end all ranks, which wait for its message.
  FSDP_RETURN_IF_ERROR(AllReduceStatus(group, found.status()));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        group.AllGatherObject(group.rank() == 0 ? Encode(*found) : ""));
  return Decode(blobs[0]);
}

}  // namespace fsdp
