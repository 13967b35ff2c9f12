// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/save/hdf5_sink.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/format/flat_place.h"
#include "fsdp/checkpoint/format/manifest_json.h"
#include "fsdp/checkpoint/parity/parity_files.h"
#include "fsdp/checkpoint/save/checkpoint_writer.h"
#include "fsdp/checkpoint/save/save_plan.h"
#include "fsdp/checkpoint/save/staged_checkpoint.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/tree/flat_parts.h"

namespace fsdp {
namespace {

absl::Status CheckOptions(const CheckpointDirectoryOptions& options) {
  if (options.parity < 0 || (options.parity > 0 && options.type == StateDictType::kFull)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parity is ", options.parity, ", expected at least 0, and 0 for a full checkpoint, which has no rank files"));
  }
  if (options.world_size < 1 || options.step < 0 || options.max_memory < kBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat("world size ", options.world_size, ", step ", options.step,
                                                   ", memory ", options.max_memory, " bytes (at least ", kBlockBytes,
                                                   ")"));
  }
  return absl::OkStatus();
}

Manifest IdentityOf(const StateDict& contents, const CheckpointDirectoryOptions& options) {
  Manifest identity;
  identity.save_id = NewSaveId();
  identity.step = options.step;
  identity.type = options.type;
  identity.world_size = options.world_size;
  identity.writers = options.type == StateDictType::kFull ? 1 : options.world_size;
  identity.producer = kProducer;
  identity.units = contents.units;
  if (options.type == StateDictType::kLocal && contents.units.empty()) identity.units = {OneFlatUnit(contents)};
  return identity;
}

// Adds up what the threads have written.
class Progress {
 public:
  Progress(const SavePlan& plan, const CheckpointDirectoryOptions& options) : report_(options.progress) {
    for (const TreeFile::TensorPart& tensor : plan.tensors) total_ += tensor.interval.size() * SizeOf(tensor.dtype);
  }

  void Add(int64_t nbytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = std::min(total_, done_ + nbytes);  // texts and records are written too
    report_(done_, total_);
  }

  ByteCounter counter() {
    return report_ ? ByteCounter([this](int64_t nbytes) { Add(nbytes); }) : ByteCounter();
  }

 private:
  const std::function<void(int64_t, int64_t)>& report_;
  int64_t total_ = 0;
  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

// The file of rank `rank`: its chunk of every tensor, or of every flat parameter.
absl::StatusOr<TreeFile> RankTree(const SavePlan& plan, const Manifest& identity, int rank) {
  TreeFile tree;
  tree.name = RankFileName(rank, identity.world_size);
  tree.tensors = plan.tensors;
  tree.has_record = true;
  if (rank == 0) tree.texts = plan.texts;  // what all ranks have is kept once
  const bool is_local = identity.type == StateDictType::kLocal;
  const std::vector<FlatUnitLayout> units = is_local ? identity.units : std::vector<FlatUnitLayout>();
  CutFlat(units, identity.world_size, rank, tree);
  FSDP_RETURN_IF_ERROR(AddFlatParts(units, tree));
  return tree;
}

absl::StatusOr<Manifest> WriteSharded(FileSystem& files, const std::string& directory, const SavePlan& plan,
                                      const Manifest& identity, int parity_files, ThreadPool& pool,
                                      const PayloadWriteOptions& write) {
  std::vector<Manifest> records;
  for (int rank = 0; rank < identity.world_size; ++rank) {
    Manifest mine = identity;
    mine.rank = rank;
    mine.parity_files = parity_files;
    if (rank != 0) mine.units.clear();
    FSDP_ASSIGN_OR_RETURN(const TreeFile tree, RankTree(plan, identity, rank));
    FSDP_ASSIGN_OR_RETURN(Manifest record, WriteTreeFile(files, directory, tree, mine, pool, write));
    records.push_back(std::move(record));
  }
  ParityPlan parity;
  std::vector<Digest> digests;
  if (parity_files > 0) {
    std::vector<ParityPlan::DataFile> data;
    for (const Manifest& record : records) data.push_back({record.files[0].name, record.files[0].nbytes});
    FSDP_ASSIGN_OR_RETURN(parity, PlanParity(std::move(data), parity_files));
    FSDP_RETURN_IF_ERROR(CreateParityFiles(files, directory, parity));
    FSDP_ASSIGN_OR_RETURN(digests, WriteParityBlocks(files, directory, parity, ParityShare(parity, 1, 0), pool));
  }
  FSDP_ASSIGN_OR_RETURN(Manifest manifest, WriteShardedIndex(files, directory, records, plan.texts, identity, pool));
  if (parity_files > 0) AddParity(parity, {digests}, manifest);
  return manifest;
}

absl::StatusOr<Manifest> WriteFull(FileSystem& files, const std::string& directory, const SavePlan& plan,
                                   const Manifest& identity, ThreadPool& pool, const PayloadWriteOptions& write) {
  TreeFile tree;
  tree.name = kCheckpointFileName;
  tree.tensors = plan.tensors;
  tree.texts = plan.texts;
  return WriteTreeFile(files, directory, tree, identity, pool, write);
}

}  // namespace

absl::Status WriteCheckpointDirectory(const std::string& path, const StateDict& contents, const PayloadReader& read,
                                      const CheckpointDirectoryOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckOptions(options));
  const PathParts parts = SplitPath(path);
  if (parts.name.empty() || parts.name == "." || parts.name == "..") {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is no name for a new directory"));
  }
  FileSystem& files = *options.file_system;
  // One block of payload per thread.
  const int64_t threads = std::clamp<int64_t>(options.max_memory / kBlockBytes, 1, std::max(1, options.io_threads));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                        ThreadPool::Create(static_cast<int>(threads), "checkpoint-io"));
  FSDP_ASSIGN_OR_RETURN(const SavePlan plan, PlanWhole(contents, read));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedCheckpoint> staged,
                        StagedCheckpoint::Create(files, parts.directory, parts.name, {.overwrite = options.overwrite}));
  Progress progress(plan, options);
  const Manifest identity = IdentityOf(contents, options);
  PayloadWriteOptions write;
  write.count = progress.counter();
  write.queue_depth =
      static_cast<int>(std::clamp<int64_t>(options.max_memory / kBlockBytes / threads, 1, write.queue_depth));
  absl::StatusOr<Manifest> manifest =
      options.type == StateDictType::kFull
          ? WriteFull(files, staged->path(), plan, identity, *pool, write)
          : WriteSharded(files, staged->path(), plan, identity, options.parity, *pool, write);
  FSDP_RETURN_IF_ERROR(manifest.status());
  return staged->Commit(EncodeManifest(*manifest));
}

}  // namespace fsdp
