// SPDX-License-Identifier: Apache-2.0
//
// The commit protocol among ranks. Every collective is a small control-plane gather; a step whose ranks do not all
// succeed ends the save on every rank with the error of the first that failed, and rank 0 removes the directory.
//
//   1. Every rank checks its part of the state. All ranks compare step, kind, texts and attributes, and agree which of
//   them write.
//   2. rank 0 removes leftovers of crashes, makes .step-N.tmp-<nonce>/ (steps 1 to 3 of staged_checkpoint.cc), and
//      shares its name and the save id.
//   3. The ranks write the body of the checkpoint (checkpoint_body.h): rank files, or one checkpoint.h5 that rank 0
//      writes, that all ranks write together, or that tensors are streamed into. Every file is fsynced by its writer.
//   4. With parity: rank 0 makes the parity files, and the writers fill them together.
//   5. Rank 0 completes the description of the checkpoint. It reads the records of rank files back from the disk. If it
//      does not see one, ROOT is not shared between the hosts. The tensors must be covered exactly once. The index of
//      rank files is written last.
//   6. rank 0 writes manifest.json and commits by a rename (steps 4 to 7 of staged_checkpoint.cc).
//   7. All ranks learn that it is done. Only then does Save return.
#include "fsdp/checkpoint/native/save.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/named_step.h"
#include "fsdp/checkpoint/native/native_checkpoint.h"
#include "fsdp/checkpoint/native/save/checkpoint_body.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/native/save/save_agreement.h"
#include "fsdp/checkpoint/native/save/save_plan.h"
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"
#include "fsdp/checkpoint/native/save/unchanged.h"
#include "fsdp/checkpoint/source/state_memory.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

// All ranks of a job, which exchange blobs through the process group.
class AllRanks final : public SaveGroup {
 public:
  explicit AllRanks(ProcessGroup& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  absl::Status Agree(const absl::Status& mine) override { return AllReduceStatus(group_, mine); }
  absl::StatusOr<std::vector<std::string>> Gather(std::string blob) override { return group_.AllGatherObject(blob); }

 private:
  ProcessGroup& group_;
};

// One save, as one rank sees it.
class Save {
 public:
  Save(FileSystem& files, const StateDict& state, std::string root, int64_t step, ProcessGroup& group,
       const SaveOptions& options)
      : files_(files),
        state_(state),
        root_(std::move(root)),
        step_(step),
        world_size_(group.size()),
        ranks_(group),
        options_(options),
        name_(options.name.empty() ? StepName(step) : options.name),
        type_(options.type.value_or(state.type)) {}

  absl::StatusOr<std::string> Run() {
    FSDP_ASSIGN_OR_RETURN(std::vector<int> writers, ChooseWritersOfAll());
    FSDP_ASSIGN_OR_RETURN(const SharedDirectory directory, ShareDirectory());
    const std::unique_ptr<CheckpointBody> body = NewBody(directory, std::move(writers));
    FSDP_RETURN_IF_ERROR(body->Write());
    FSDP_RETURN_IF_ERROR(AgreeFromRank0([&] { return Commit(*body); }));
    return JoinPath(root_, name_);
  }

 private:
  // Runs `work` on rank 0; its status is every rank's.
  absl::Status AgreeFromRank0(absl::FunctionRef<absl::Status()> work) {
    return ranks_.Agree(ranks_.rank() == 0 ? work() : absl::OkStatus());
  }

  // True for FULL from all ranks.
  bool is_shared() const { return type_ == StateDictType::kFull && state_.type != StateDictType::kFull; }

  // Step 1.
  absl::StatusOr<std::vector<int>> ChooseWritersOfAll() {
    FSDP_RETURN_IF_ERROR(ranks_.Agree(Plan()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> facts,
                          ranks_.Gather(EncodeFacts(step_, state_.type, options_, plan_)));
    return ChooseWriters(facts);
  }

  absl::Status Plan() {
    if (step_ < 0) return absl::InvalidArgumentError(absl::StrCat("step ", step_, " is negative"));
    if (root_.empty()) return absl::InvalidArgumentError("the directory of checkpoints has no name");
    FSDP_RETURN_IF_ERROR(CheckType());
    pool_ = options_.pool;
    if (pool_ == nullptr) {
      FSDP_ASSIGN_OR_RETURN(own_pool_, ThreadPool::Create(options_.io_threads, "checkpoint-io"));
      pool_ = own_pool_.get();
    }
    // A FULL state is rank 0's; the states of other ranks are ignored (rank0_only).
    if (state_.type == StateDictType::kFull && ranks_.rank() != 0) return absl::OkStatus();
    FSDP_RETURN_IF_ERROR(CheckMemory(state_, {}, "save it by AsyncSaver, or take the state dict with offload_to_cpu"));
    FSDP_ASSIGN_OR_RETURN(plan_, options_.stream ? PlanWhole(state_, no_reader_) : PlanSave(state_));
    // Each rank reads the base itself: only its own files can be linked, and an error on one rank costs only its links.
    if (!options_.base.empty()) base_ = ReadBaseCheckpoint(files_, options_.base);
    return absl::OkStatus();
  }

  absl::Status CheckType() const {
    const std::string kind(StateDictTypeName(state_.type));
    if (type_ != state_.type && type_ != StateDictType::kFull) {
      return absl::InvalidArgumentError(absl::StrCat("a ", kind, " state dict cannot be saved as a ",
                                                     std::string(StateDictTypeName(type_)),
                                                     " checkpoint; save it as it is, or full, and use ckpt convert"));
    }
    if (options_.stream && state_.type != StateDictType::kFull) {
      return absl::InvalidArgumentError(
          absl::StrCat("a ", kind, " state dict cannot be streamed; only a full one is made so"));
    }
    FSDP_RETURN_IF_ERROR(CheckCheckpointName(name_, step_));
    return CheckParityCount(options_.parity, type_);
  }

  // Step 2.
  absl::StatusOr<SharedDirectory> ShareDirectory() {
    FSDP_RETURN_IF_ERROR(AgreeFromRank0([this] { return Stage(); }));
    const SharedDirectory mine = {staged_ != nullptr ? SplitPath(staged_->path()).name : "", NewSaveId()};
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, ranks_.Gather(EncodeSharedDirectory(mine)));
    return DecodeSharedDirectory(blobs[0]);
  }

  absl::Status Stage() {
    FSDP_RETURN_IF_ERROR(MakeDirectories(files_, root_));
    const StagedCheckpointOptions options = {
        .overwrite = options_.overwrite,
        .is_cleaned = [this](const std::string& name) { return name == name_ || ParseStepName(name).has_value(); },
        .on_leftover = options_.note,
    };
    FSDP_RETURN_IF_ERROR(CheckReplaced());
    FSDP_ASSIGN_OR_RETURN(staged_, StagedCheckpoint::Create(files_, root_, name_, options));
    return absl::OkStatus();
  }

  // SaveOptions::overwrite replaces only checkpoints: any other entry with the name of the step stays.
  absl::Status CheckReplaced() const {
    const std::string path = JoinPath(root_, name_);
    if (!options_.overwrite) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(const bool exists, IsThere(path));
    if (!exists) return absl::OkStatus();
    const absl::Status proof = CheckIsOurCheckpoint(files_, path);
    if (absl::IsFailedPrecondition(proof)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not a checkpoint of this project and is not overwritten: ", proof.message(),
                       "; move it, or save in another directory"));
    }
    FSDP_RETURN_IF_ERROR(proof);
    const absl::Status deletable = ProveDeletable(files_, path);
    if (!absl::IsFailedPrecondition(deletable)) return deletable;
    return absl::FailedPreconditionError(absl::StrCat(path, " is not overwritten: ", deletable.message()));
  }

  // The body that carries out steps 3 to 5.
  std::unique_ptr<CheckpointBody> NewBody(const SharedDirectory& directory, std::vector<int> writers) {
    BodyContext context = {.files = files_,
                           .group = ranks_,
                           .pool = *pool_,
                           .directory = JoinPath(root_, directory.name),
                           .save = {.id = directory.save_id,
                                    .step = step_,
                                    .type = type_,
                                    .world_size = world_size_,
                                    .writers = is_shared() ? 1 : static_cast<int>(writers.size()),
                                    .producer = kProducer,
                                    .name = name_ == StepName(step_) ? "" : name_,
                                    .attributes = plan_.attributes},
                           .units = state_.units,
                           .texts = plan_.texts,
                           .root = root_};
    std::vector<TreeFile::TensorPart>& tensors = plan_.tensors;
    if (options_.stream) return NewStreamedFile(std::move(context), std::move(tensors), options_.stream);
    if (is_shared()) return NewSharedFile(std::move(context), std::move(tensors), std::move(writers));
    if (type_ == StateDictType::kFull) return NewWholeFile(std::move(context), std::move(tensors));
    RankFilesOptions options = {.owners = std::move(writers), .parity = options_.parity};
    options.tree = [this](const BodyContext& body, int writer) { return NewRankTree(body, writer); };
    return NewRankFiles(std::move(context), std::move(options));
  }

  absl::StatusOr<TreeFile> NewRankTree(const BodyContext& body, int writer) const {
    RecordHeader header = {
        .save = body.save, .rank = ranks_.rank(), .parity_files = options_.parity, .units = body.units};
    FSDP_ASSIGN_OR_RETURN(TreeFile tree, RankTree(body, writer, std::move(header), plan_.tensors));
    if (base_.ok() && IsAlike(base_->manifest, body.save, body.units)) {
      FSDP_RETURN_IF_ERROR(LinkUnchanged(files_, *base_, body.directory, tree, *pool_));
    }
    return tree;
  }

  // Steps 5 and 6.
  absl::Status Commit(CheckpointBody& body) {
    FSDP_ASSIGN_OR_RETURN(const Manifest manifest, body.Describe());
    if (options_.note && !options_.base.empty()) options_.note(DescribeLinks(base_, manifest));
    return staged_->Commit(EncodeManifest(manifest));
  }

  FileSystem& files_;
  const StateDict& state_;
  const std::string root_;
  const int64_t step_;
  const int world_size_;
  AllRanks ranks_;
  const SaveOptions& options_;
  const std::string name_;    // of the checkpoint
  const StateDictType type_;  // of the checkpoint

  std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool* pool_ = nullptr;          // the caller's or own_pool_
  const PayloadReader no_reader_ = {};  // for the plan of a stream, which supplies the elements itself
  SavePlan plan_;                       // the part that this rank contributes
  // The checkpoint that SaveOptions::base names. A save without it is better than none, so an error is only reported in
  // a note.
  absl::StatusOr<BaseCheckpoint> base_ = absl::NotFoundError("no earlier checkpoint was given");
  std::unique_ptr<StagedCheckpoint> staged_;  // rank 0's
};

}  // namespace

absl::StatusOr<std::string> SaveCheckpointOn(FileSystem& files, const StateDict& state, const std::string& root,
                                             int64_t step, ProcessGroup& group, const SaveOptions& options) {
  return Save(files, state, root, step, group, options).Run();
}

absl::StatusOr<std::string> SaveCheckpoint(const StateDict& state, const std::string& root, int64_t step,
                                           ProcessGroup& group, const SaveOptions& options) {
  return SaveCheckpointOn(PosixFileSystem(), state, root, step, group, options);
}

}  // namespace fsdp
