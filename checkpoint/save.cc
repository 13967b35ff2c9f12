// SPDX-License-Identifier: Apache-2.0
//
// The commit protocol among ranks. Every collective is a small control-plane gather; a step whose ranks do not all
// succeed ends the save on every rank with the error of the first that failed, and rank 0 removes the directory.
//
//   1. Every rank checks what it is to save. All ranks compare step, kind and texts, and learn who writes.
//   2. rank 0 sweeps leftovers of crashes, makes .step-N.tmp-<nonce>/ (steps 1 to 3 of staged_checkpoint.cc), and
//      shares its name and the save id.
//   3. Every writer writes its file, fsyncs it, and reports its name, size, and the digest of the record in it.
//      (FULL from all ranks: rank 0 makes checkpoint.h5 and shares where each tensor begins; every writer writes its
//      elements into it, whole pages first, and when all have, the rest; it fsyncs it, and reports their digests. A
//      streamed FULL: rank 0 makes it likewise and writes the tensors as they come.)
//   4. With parity: rank 0 makes the parity files; every writer makes its share of their blocks from all rank files,
//      fsyncs, and reports digests.
//   5. rank 0 reads the records of the others, which describe everything else, back from the files as it sees them:
//      where it does not see one, ROOT is not shared between the hosts. Together with its own they must cover every
//      tensor exactly once.
//   6. rank 0 writes checkpoint.h5 and fsyncs it, then manifest.json, and commits by a rename (steps 4 to 7 of
//      staged_checkpoint.cc).
//   7. All ranks learn that it is done. Only now is the save reported.
#include "fsdp/checkpoint/save.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/format/manifest_file.h"
#include "fsdp/checkpoint/format/manifest_json.h"
#include "fsdp/checkpoint/format/record.h"
#include "fsdp/checkpoint/parity/parity_files.h"
#include "fsdp/checkpoint/save/checkpoint_writer.h"
#include "fsdp/checkpoint/save/save_agreement.h"
#include "fsdp/checkpoint/save/save_plan.h"
#include "fsdp/checkpoint/save/staged_checkpoint.h"
#include "fsdp/checkpoint/save/streamed_file.h"
#include "fsdp/checkpoint/save/unchanged.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/tree/flat_parts.h"
#include "fsdp/checkpoint/tree/tree_parts.h"

namespace fsdp {
namespace {

// One save, as one rank sees it.
class Save {
 public:
  Save(FileSystem& files, const StateDict& state, std::string root, int64_t step, ProcessGroup& group,
       const SaveOptions& options)
      : files_(files), state_(state), root_(std::move(root)), step_(step), group_(group), options_(options) {}

  absl::StatusOr<std::string> Run() {
    FSDP_RETURN_IF_ERROR(Agree());
    FSDP_RETURN_IF_ERROR(ShareDirectory());
    if (options_.stream) {
      FSDP_RETURN_IF_ERROR(WriteStreamedFile());
    } else {
      FSDP_RETURN_IF_ERROR(is_shared() ? WriteSharedFile() : WriteFile());
    }
    if (options_.parity > 0) FSDP_RETURN_IF_ERROR(WriteParity());
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, group_.rank() == 0 ? Commit() : absl::OkStatus()));
    return JoinPath(root_, StepName(step_));
  }

 private:
  // The kind of the checkpoint.
  StateDictType type() const { return options_.type.value_or(state_.type); }

  // True for FULL from all ranks.
  bool is_shared() const { return type() == StateDictType::kFull && state_.type != StateDictType::kFull; }

  // Step 1.
  absl::Status Agree() {
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, Plan()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> facts,
                          group_.GatherBlobs(EncodeFacts(step_, state_.type, options_, plan_)));
    FSDP_ASSIGN_OR_RETURN(writers_, ChooseWriters(facts));
    return absl::OkStatus();
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
    // rank0_only: the others' state is not looked at.
    if (state_.type == StateDictType::kFull && group_.rank() != 0) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(plan_, options_.stream ? PlanWhole(state_, no_reader_) : PlanSave(state_));
    if (options_.base.empty()) return absl::OkStatus();
    base_.path = options_.base;
    // A save without it is better than none.
    absl::StatusOr<Manifest> base = ReadManifest(files_, options_.base);
    base_status_ = base.status();
    has_base_ = base.ok();
    if (has_base_) base_.manifest = *std::move(base);
    return absl::OkStatus();
  }

  absl::Status CheckType() const {
    if (type() != state_.type && type() != StateDictType::kFull) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a ", std::string(StateDictTypeName(state_.type)), " state dict cannot be saved as a ",
          std::string(StateDictTypeName(type())), " checkpoint; save it as it is, or full, and use ckpt convert"));
    }
    if (options_.stream && state_.type != StateDictType::kFull) {
      return absl::InvalidArgumentError(absl::StrCat("a ", std::string(StateDictTypeName(state_.type)),
                                                     " state dict cannot be streamed; only a full one is made so"));
    }
    if (options_.parity < 0 || (options_.parity > 0 && type() == StateDictType::kFull)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parity is ", options_.parity,
                       ", expected at least 0, and 0 for a full checkpoint, which has no rank files"));
    }
    return absl::OkStatus();
  }

  // Step 2.
  absl::Status ShareDirectory() {
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, group_.rank() == 0 ? Stage() : absl::OkStatus()));
    const SharedDirectory mine = {staged_ != nullptr ? SplitPath(staged_->path()).name : "", NewSaveId()};
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group_.GatherBlobs(EncodeSharedDirectory(mine)));
    FSDP_ASSIGN_OR_RETURN(const SharedDirectory shared, DecodeSharedDirectory(blobs[0]));
    directory_ = JoinPath(root_, shared.name);
    identity_.save_id = shared.save_id;
    identity_.step = step_;
    identity_.type = type();
    identity_.world_size = group_.size();
    identity_.writers = is_shared() ? 1 : static_cast<int>(writers_.size());
    identity_.producer = kProducer;
    identity_.units = state_.units;
    return absl::OkStatus();
  }

  absl::Status Stage() {
    FSDP_RETURN_IF_ERROR(MakeDirectories(files_, root_));
    const StagedCheckpointOptions options = {
        .overwrite = options_.overwrite,
        .sweeps = [](const std::string& name) { return ParseStepName(name).has_value(); },
        .swept = options_.note,
    };
    FSDP_ASSIGN_OR_RETURN(staged_, StagedCheckpoint::Create(files_, root_, StepName(step_), options));
    return absl::OkStatus();
  }

  // Step 3.
  absl::Status WriteFile() {
    absl::StatusOr<WrittenFile> written = WriteMine();
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, written.status()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group_.GatherBlobs(EncodeWrittenFile(*written)));
    if (group_.rank() != 0) return absl::OkStatus();
    for (const int writer : writers_) {
      FSDP_ASSIGN_OR_RETURN(WrittenFile file, DecodeWrittenFile(blobs[writer]));
      written_.push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  // The file of this rank; nothing for a rank that is no writer.
  absl::StatusOr<WrittenFile> WriteMine() {
    WrittenFile written;
    for (size_t writer = 0; writer < writers_.size(); ++writer) {
      if (writers_[writer] != group_.rank()) continue;
      TreeFile tree;
      tree.has_record = state_.type != StateDictType::kFull;
      tree.name = tree.has_record ? RankFileName(static_cast<int>(writer), identity_.writers) : kCheckpointFileName;
      tree.tensors = plan_.tensors;
      if (state_.type == StateDictType::kLocal) FSDP_RETURN_IF_ERROR(AddFlatParts(state_.units, tree));
      Manifest identity = identity_;
      if (tree.has_record) identity.rank = group_.rank();
      if (tree.has_record) identity.parity_files = options_.parity;
      // What all ranks have is kept once.
      if (writer == 0) tree.texts = plan_.texts;
      if (has_base_ && tree.has_record) {
        FSDP_RETURN_IF_ERROR(LinkUnchanged(files_, base_, identity, directory_, tree, *pool_));
      }
      if (writer != 0) identity.units.clear();
      absl::StatusOr<Manifest> part = WriteLaidOut(tree, identity);
      if (absl::IsNotFound(part.status())) return NotShared(part.status());
      FSDP_RETURN_IF_ERROR(part.status());
      if (tree.has_record) written = Written(*part);
      (tree.has_record ? mine_ : full_) = *std::move(part);
    }
    return written;
  }

  // Lays `tree` out and writes it. What the only rank file will hold is known in between, so HDF5 lays out the index
  // while the disk is busy with the payload.
  absl::StatusOr<Manifest> WriteLaidOut(const TreeFile& tree, const Manifest& identity) {
    FSDP_ASSIGN_OR_RETURN(const LaidOutFile file, LaidOutFile::Create(tree, identity));
    absl::StatusOr<Manifest> part;
    const auto write = [&] {
      part = file.Write(files_, directory_, *pool_, {});
      return part.status();
    };
    const auto lay_out_index = [&]() -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(index_, ShardedIndex::Create({file.Describe()}, plan_.texts, identity_));
      return absl::OkStatus();
    };
    const bool is_alone = tree.has_record && group_.rank() == 0 && writers_.size() == 1;
    FSDP_RETURN_IF_ERROR(is_alone ? pool_->Run({write, lay_out_index}) : write());
    return part;
  }

  // Step 3, FULL from all ranks.
  absl::Status WriteSharedFile() {
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, group_.rank() == 0 ? MakeSharedFile() : absl::OkStatus()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> shared,
                          group_.GatherBlobs(EncodeOffsets(TensorOffsets(full_))));
    // Nobody writes through the page cache while others write directly (write_queue.h).
    std::optional<absl::Status> met;
    const WriteBarrier barrier = [&](const absl::Status& written) { return met.emplace(AgreeOn(group_, written)); };
    const absl::StatusOr<Manifest> part = WriteMyElements(shared[0], barrier);
    FSDP_RETURN_IF_ERROR(met ? *met : barrier(part.status()));
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, part.status()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group_.GatherBlobs(EncodeManifest(*part)));
    if (group_.rank() != 0) return absl::OkStatus();
    for (const int writer : writers_) {
      FSDP_ASSIGN_OR_RETURN(Manifest written, DecodeManifest(blobs[writer]));
      parts_.push_back(std::move(written));
    }
    return absl::OkStatus();
  }

  // Everything of checkpoint.h5 but the elements of tensors.
  absl::Status MakeSharedFile() {
    TreeFile tree;
    tree.name = kCheckpointFileName;
    tree.tensors = plan_.tensors;
    tree.texts = plan_.texts;
    tree.is_shared = true;
    for (TreeFile::TensorPart& tensor : tree.tensors) tensor.interval = {0, tensor.shape.numel()};
    FSDP_ASSIGN_OR_RETURN(full_, WriteTreeFile(files_, directory_, tree, identity_, *pool_, {}));
    return absl::OkStatus();
  }

  absl::StatusOr<Manifest> WriteMyElements(const std::string& shared, const WriteBarrier& barrier) {
    if (std::find(writers_.begin(), writers_.end(), group_.rank()) == writers_.end()) return identity_;
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, DecodeOffsets(shared));
    absl::StatusOr<Manifest> part =
        WriteTreeParts(files_, directory_, kCheckpointFileName, plan_.tensors, offsets, barrier, *pool_);
    if (absl::IsNotFound(part.status())) return NotShared(part.status());
    return part;
  }

  // Step 3, FULL as it comes.
  absl::Status WriteStreamedFile() {
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, group_.rank() == 0 ? MakeStreamedFile() : absl::OkStatus()));
    FSDP_RETURN_IF_ERROR(
        AgreeOn(group_, options_.stream([this](const StateDict& part) { return streamed_->Write(part); })));
    return AgreeOn(group_, group_.rank() == 0 ? FinishStreamedFile() : absl::OkStatus());
  }

  absl::Status MakeStreamedFile() {
    TreeFile tree;
    tree.name = kCheckpointFileName;
    tree.tensors = plan_.tensors;
    tree.texts = plan_.texts;
    FSDP_ASSIGN_OR_RETURN(streamed_, StreamedFile::Create(files_, directory_, std::move(tree), identity_, *pool_));
    return absl::OkStatus();
  }

  absl::Status FinishStreamedFile() {
    FSDP_ASSIGN_OR_RETURN(full_, std::move(*streamed_).Finish());
    return absl::OkStatus();
  }

  // Step 4.
  absl::Status WriteParity() {
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, group_.rank() == 0 ? MakeParityFiles() : absl::OkStatus()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> shared, group_.GatherBlobs(EncodeParityPlan(parity_)));
    const absl::StatusOr<std::vector<Digest>> digests = WriteMyParity(shared[0]);
    FSDP_RETURN_IF_ERROR(AgreeOn(group_, digests.status()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group_.GatherBlobs(EncodeDigests(*digests)));
    for (const int writer : writers_) {
      FSDP_ASSIGN_OR_RETURN(std::vector<Digest> share, DecodeDigests(blobs[writer]));
      parity_digests_.push_back(std::move(share));
    }
    return absl::OkStatus();
  }

  absl::Status MakeParityFiles() {
    std::vector<ParityPlan::DataFile> data;
    for (const WrittenFile& file : written_) {
      data.push_back({file.name, file.nbytes});
      for (const auto& [name, nbytes] : file.links) data.push_back({name, nbytes});
    }
    FSDP_ASSIGN_OR_RETURN(parity_, PlanParity(std::move(data), options_.parity));
    return CreateParityFiles(files_, directory_, parity_);
  }

  absl::StatusOr<std::vector<Digest>> WriteMyParity(const std::string& shared) {
    const auto me = std::find(writers_.begin(), writers_.end(), group_.rank());
    if (me == writers_.end()) return std::vector<Digest>();
    FSDP_ASSIGN_OR_RETURN(const ParityPlan plan, DecodeParityPlan(shared));
    const Interval share =
        ParityShare(plan, static_cast<int>(writers_.size()), static_cast<int>(me - writers_.begin()));
    return WriteParityBlocks(files_, directory_, plan, share, *pool_);
  }

  absl::Status NotShared(const absl::Status& status) const {
    return absl::FailedPreconditionError(absl::StrCat(std::string(status.message()), "; ", root_,
                                                      " must be a directory that all hosts share under this name"));
  }

  // Steps 5 and 6.
  absl::Status Commit() {
    if (is_shared()) FSDP_RETURN_IF_ERROR(MergeTreeParts(parts_, full_));
    if (type() == StateDictType::kFull) {
      NoteLinks(full_);
      return staged_->Commit(EncodeManifest(full_));
    }
    std::vector<Manifest> records;
    for (size_t writer = 0; writer < writers_.size(); ++writer) {
      if (writers_[writer] == group_.rank()) {
        records.push_back(std::move(mine_));
        continue;
      }
      absl::StatusOr<Manifest> record = ReadRecord(files_, directory_, written_[writer]);
      if (absl::IsNotFound(record.status())) {
        return NotShared(absl::NotFoundError(absl::StrCat("rank 0 does not see the file of rank ", writers_[writer],
                                                          ": ", std::string(record.status().message()))));
      }
      FSDP_RETURN_IF_ERROR(record.status());
      records.push_back(*std::move(record));
    }
    if (index_ == nullptr) {
      FSDP_ASSIGN_OR_RETURN(index_, ShardedIndex::Create(records, plan_.texts, identity_));
    }
    FSDP_ASSIGN_OR_RETURN(Manifest manifest, index_->Write(files_, directory_, records, *pool_));
    if (options_.parity > 0) AddParity(parity_, parity_digests_, manifest);
    NoteLinks(manifest);
    return staged_->Commit(EncodeManifest(manifest));
  }

  static const char* WhyNothingIsLinked(const Manifest& base, const Manifest& manifest) {
    if (manifest.type == StateDictType::kFull) return "a full checkpoint is one file, which is written whole";
    if (!IsAlike(base, manifest)) return "its kind, number of rank files or wrapping is another";
    return "of each less than half is unchanged, or it is damaged, or the file system does not link files";
  }

  void NoteLinks(const Manifest& manifest) const {
    if (!options_.note || options_.base.empty()) return;
    if (!has_base_) {
      return options_.note(absl::StrCat("everything was written, since the checkpoint before cannot be read: ",
                                        std::string(base_status_.message())));
    }
    const std::string base = StepName(base_.manifest.step);
    if (LinkedBytes(manifest) == 0) {
      return options_.note(absl::StrCat("everything was written, since no file of ", base,
                                        " could be linked: ", WhyNothingIsLinked(base_.manifest, manifest)));
    }
    int64_t nbytes = 0;
    for (const StoredTensor& tensor : manifest.tensors) nbytes += tensor.shape.numel() * SizeOf(tensor.dtype);
    options_.note(absl::StrCat(LinkedBytes(manifest), " of ", nbytes, " bytes are unchanged since ", base,
                               " and were not written again"));
  }

  FileSystem& files_;
  const StateDict& state_;
  const std::string root_;
  const int64_t step_;
  ProcessGroup& group_;
  const SaveOptions& options_;

  std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool* pool_ = nullptr;
  SavePlan plan_;
  std::vector<int> writers_;                  // their ranks, in order
  std::unique_ptr<StagedCheckpoint> staged_;  // rank 0's
  std::string directory_;                     // the hidden one
  BaseCheckpoint base_;                       // that of the options
  bool has_base_ = false;
  absl::Status base_status_;                   // why not
  Manifest identity_;                          // what all files of the save share
  const PayloadReader no_reader_ = {};         // elements of a stream come by themselves
  std::unique_ptr<StreamedFile> streamed_;     // rank 0's, of a stream
  Manifest mine_;                              // what this rank's file says of itself
  std::vector<WrittenFile> written_;           // rank 0's: of each writer
  std::unique_ptr<const ShardedIndex> index_;  // rank 0's
  Manifest full_;                              // rank 0's, of a FULL save
  std::vector<Manifest> parts_;                // rank 0's, of a FULL save by all ranks: of each writer
  ParityPlan parity_;                          // rank 0's
  std::vector<std::vector<Digest>> parity_digests_;
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
