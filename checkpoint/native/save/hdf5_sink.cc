// SPDX-License-Identifier: Apache-2.0
//
// A save by a SoloSaveGroup: this process owns all rank files and writes them one after the other, each cut from the
// same plan as FSDP would shard it. The layout equals a save by `world_size` ranks, so a job of that size resumes
// without resharding.
#include "fsdp/checkpoint/native/save/hdf5_sink.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/flat_place.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/save/checkpoint_body.h"
#include "fsdp/checkpoint/native/save/save_plan.h"
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"
#include "fsdp/checkpoint/native/tree/flat_parts.h"
#include "fsdp/checkpoint/native/tree/payload_writer.h"
#include "fsdp/checkpoint/native/tree/tree_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {
namespace {

absl::Status CheckOptions(const CheckpointDirectoryOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckParityCount(options.parity, options.type));
  const bool is_world = options.world_size >= 1 && options.world_size <= kMaxRankFiles;
  if (!is_world || options.step < -1 || options.max_memory < kBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat("world size ", options.world_size, " (1 to ", kMaxRankFiles,
                                                   "), step ", options.step, ", memory ", options.max_memory,
                                                   " bytes (at least ", kBlockBytes, ")"));
  }
  return absl::OkStatus();
}

SaveIdentity IdentityOf(const StateDict& contents, const CheckpointDirectoryOptions& options) {
  return {.id = NewSaveId(),
          .step = std::max<int64_t>(options.step, 0),
          .has_step = options.step >= 0,
          .type = options.type,
          .world_size = options.world_size,
          .writers = options.type == StateDictType::kFull ? 1 : options.world_size,
          .producer = kProducer,
          .attributes = contents.attributes};
}

std::vector<FlatUnitLayout> UnitsOf(const StateDict& contents, const CheckpointDirectoryOptions& options) {
  if (options.type != StateDictType::kLocal || !contents.units.empty()) return contents.units;
  return {OneFlatUnit(contents)};
}

// Adds up the bytes that the threads have written. Thread-safe.
class Progress {
 public:
  Progress(const SavePlan& plan, const CheckpointDirectoryOptions& options) : report_(options.progress) {
    for (const TreeFile::TensorPart& tensor : plan.tensors) total_ += tensor.interval.size() * SizeOf(tensor.dtype);
  }

  void Add(int64_t nbytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = std::min(total_, done_ + nbytes);  // texts are counted by the writer but are not in total_
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

// One block of payload per thread, or fewer threads; the remaining memory lets each have more blocks in flight.
struct Buffers {
  explicit Buffers(const CheckpointDirectoryOptions& options)
      : blocks(options.max_memory / kBlockBytes),
        threads(static_cast<int>(std::clamp<int64_t>(blocks, 1, std::max(1, options.io_threads)))) {}

  int64_t blocks;
  int threads;
};

PayloadWriteOptions WriteOptions(const Buffers& buffers, Progress& progress) {
  PayloadWriteOptions write;
  write.count = progress.counter();
  write.queue_depth = static_cast<int>(std::clamp<int64_t>(buffers.blocks / buffers.threads, 1, write.queue_depth));
  return write;
}

// Counts the work on the names of `tensors` tensors that is no layout of rank files.
void CountRest(const CheckpointDirectoryOptions& options, int64_t tensors) {
  if (!options.count_names) return;
  const int64_t rank_files = options.type == StateDictType::kFull ? 1 : options.world_size;
  options.count_names(tensors * (CheckpointNameWork(options.type, options.world_size) - rank_files * kLayoutWork));
}

// The rank files that ranks would write if they held these tensors sharded by FSDP.
std::unique_ptr<CheckpointBody> NewShardedBody(BodyContext context, std::vector<TreeFile::TensorPart> tensors,
                                               int parity) {
  RankFilesOptions options;
  options.owners.assign(context.save.world_size, 0);
  options.parity = parity;
  options.tree = [tensors = std::move(tensors), parity](const BodyContext& body, int writer) {
    const bool is_local = body.save.type == StateDictType::kLocal;
    // Only descriptions are copied; the elements are pulled from the readers while the file is written.
    std::vector<TreeFile::TensorPart> cut = tensors;
    CutFlat(is_local ? body.units : std::vector<FlatUnitLayout>(), body.save.world_size, writer, cut);
    RecordHeader header = {.save = body.save, .rank = writer, .parity_files = parity, .units = body.units};
    return RankTree(body, writer, std::move(header), std::move(cut));
  };
  return NewRankFiles(std::move(context), std::move(options));
}

}  // namespace

// A tensor of the index is a virtual dataset, whose mappings cost more than a dataset does.
int64_t CheckpointNameWork(StateDictType type, int world_size) {
  constexpr int64_t kDescription = 1;  // in the record or the manifest
  constexpr int64_t kIndex = 8;
  if (type == StateDictType::kFull) return kLayoutWork + kDescription;
  return world_size * (kLayoutWork + kDescription) + kIndex;
}

absl::Status WriteCheckpointDirectory(const std::string& path, const StateDict& contents, const PayloadReader& read,
                                      const CheckpointDirectoryOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckOptions(options));
  const PathParts parts = SplitPath(path);
  if (parts.name.empty() || parts.name == "." || parts.name == "..") {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is not a name for a new directory"));
  }
  FileSystem& files = *options.file_system;
  const Buffers buffers(options);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(buffers.threads, "checkpoint-io"));
  // All names and options are checked before StagedCheckpoint makes the first directory.
  FSDP_ASSIGN_OR_RETURN(SavePlan plan, PlanWhole(contents, read));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedCheckpoint> staged,
                        StagedCheckpoint::Create(files, parts.directory, parts.name, {.overwrite = options.overwrite}));
  Progress progress(plan, options);
  SoloSaveGroup group;
  BodyContext context = {.files = files,
                         .group = group,
                         .pool = *pool,
                         .directory = staged->path(),
                         .save = IdentityOf(contents, options),
                         .units = UnitsOf(contents, options),
                         .texts = plan.texts};
  context.write = WriteOptions(buffers, progress);
  const int64_t tensors = std::ssize(plan.tensors);
  if (options.count_names) context.laid_out = [&] { options.count_names(kLayoutWork); };
  const std::unique_ptr<CheckpointBody> body =
      options.type == StateDictType::kFull
          ? NewWholeFile(std::move(context), std::move(plan.tensors))
          : NewShardedBody(std::move(context), std::move(plan.tensors), options.parity);
  FSDP_RETURN_IF_ERROR(body->Write());
  FSDP_ASSIGN_OR_RETURN(const Manifest manifest, body->Describe());
  CountRest(options, tensors);
  return staged->Commit(EncodeManifest(manifest));
}

absl::Status WriteHdf5File(const std::string& path, const StateDict& contents, const PayloadReader& read,
                           const CheckpointDirectoryOptions& options) {
  const Buffers buffers(options);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(buffers.threads, "checkpoint-io"));
  FSDP_ASSIGN_OR_RETURN(SavePlan plan, PlanWhole(contents, read));
  Progress progress(plan, options);
  TreeFile tree;
  tree.name = SplitPath(path).name;
  tree.tensors = std::move(plan.tensors);
  tree.texts = std::move(plan.texts);
  tree.attributes = RootAttributes(IdentityOf(contents, options));
  tree.is_for_all_programs = true;
  tree.stands_alone = true;
  const int64_t tensors = std::ssize(tree.tensors);
  if (options.count_names) tree.laid_out = [&] { options.count_names(kLayoutWork); };
  FSDP_ASSIGN_OR_RETURN(const LaidOutFile file, LaidOutFile::Create(tree));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateFile(*options.file_system, path, {.overwrite = options.overwrite}));
  FSDP_RETURN_IF_ERROR(file.Write(staged->file(), *pool, WriteOptions(buffers, progress)).status());
  CountRest(options, tensors);
  return staged->Commit();
}

}  // namespace fsdp
