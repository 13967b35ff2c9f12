// SPDX-License-Identifier: Apache-2.0
//
// CheckpointBody: writes the files of a checkpoint between the creation of its hidden directory and its commit. A save
// chooses one of four bodies:
//
//   rank files      a SHARDED or LOCAL state      each writer its own file; then parity; then checkpoint.h5, the
//                                                 index, which shows whole tensors
//   whole file      a FULL state on rank 0        rank 0 writes checkpoint.h5
//   shared file     FULL of another state         rank 0 makes checkpoint.h5, every writer writes its elements into it
//   streamed file   FULL, tensor by tensor        rank 0 makes checkpoint.h5 and writes each tensor as it arrives
//
// SaveCheckpoint runs a body on all ranks of a job, WriteCheckpointDirectory in one process; a body knows its ranks
// only as a SaveGroup. A body is used by one thread of each rank: Write once, then on rank 0 Describe once.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_BODY_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_BODY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/save/save_options.h"
#include "fsdp/checkpoint/native/save/save_plan.h"
#include "fsdp/checkpoint/native/tree/tree_file.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The ranks that make one checkpoint together, from the view of one of them. Both calls are collectives: every rank
// makes the same calls in the same order, and each blocks until all ranks have made it.
class SaveGroup {
 public:
  virtual ~SaveGroup() = default;

  virtual int rank() const = 0;

  // OK when `mine` is OK on every rank, else the error of the first rank that has one.
  virtual absl::Status Agree(const absl::Status& mine) = 0;

  // The blobs of all ranks, by rank. Small: control-plane traffic.
  virtual absl::StatusOr<std::vector<std::string>> Gather(std::string blob) = 0;
};

// One process that makes a checkpoint by itself.
class SoloSaveGroup final : public SaveGroup {
 public:
  int rank() const override { return 0; }
  absl::Status Agree(const absl::Status& mine) override { return mine; }
  absl::StatusOr<std::vector<std::string>> Gather(std::string blob) override { return std::vector{std::move(blob)}; }
};

// The arguments of every body. The referenced objects must outlive the body.
struct BodyContext {
  FileSystem& files;
  SaveGroup& group;
  ThreadPool& pool;
  std::string directory;                // the hidden one, same on all ranks
  SaveIdentity save;                    // goes into every record and the manifest
  std::vector<FlatUnitLayout> units;    // goes into the first record and the manifest
  std::vector<TreeFile::Text> texts;    // rank 0's
  PayloadWriteOptions write = {};       // of files that one process writes
  std::function<void()> laid_out = {};  // TreeFile::laid_out of files with payload

  // The directory of checkpoints, which all hosts must share; named in the error when a rank does not see another's
  // file. Empty if one process writes everything.
  std::string root = {};
};

class CheckpointBody {
 public:
  virtual ~CheckpointBody() = default;

  // Writes and fsyncs every file except those that Describe writes. A collective: an error on any rank is returned on
  // all.
  virtual absl::Status Write() = 0;

  // Called once, only on rank 0, after Write: completes the checkpoint and returns its manifest. kDataLoss when tensors
  // are not covered exactly once; kFailedPrecondition when ranks disagree about a tensor, or hosts do not share `root`.
  virtual absl::StatusOr<Manifest> Describe() = 0;
};

struct RankFilesOptions {
  // By writer: the rank that writes its file. A rank of several ranks has at most one; a single process has all.
  std::vector<int> owners = {};

  // Makes the tree of the file of `writer`; called on its owner. See RankTree.
  std::function<absl::StatusOr<TreeFile>(const BodyContext& context, int writer)> tree = {};

  int parity = 0;  // number of parity files
};

std::unique_ptr<CheckpointBody> NewRankFiles(BodyContext context, RankFilesOptions options);

// checkpoint.h5 with all `tensors`, which rank 0 holds whole.
std::unique_ptr<CheckpointBody> NewWholeFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors);

// checkpoint.h5 with `tensors`. The intervals are the elements that a rank writes; they are disjoint among the ranks
// `writers`. All of these, and rank 0 even if it does not write, have the same tensors in the same order.
std::unique_ptr<CheckpointBody> NewSharedFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors,
                                              std::vector<int> writers);

// checkpoint.h5 with `tensors`, which only name rank 0's tensors; `stream` supplies the elements, whole tensors at a
// time.
std::unique_ptr<CheckpointBody> NewStreamedFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors,
                                                StateStream stream);

// The tree of the rank file of `writer`. `tensors` have the intervals for the file; in a LOCAL checkpoint they go into
// flat datasets. The first file also stores the texts, attributes and units; `header` always has the last two.
// kInvalidArgument for elements outside of a LOCAL rank's shards; see AddFlatParts.
absl::StatusOr<TreeFile> RankTree(const BodyContext& context, int writer, RecordHeader header,
                                  std::vector<TreeFile::TensorPart> tensors);

// For bodies: the manifest of the files that `values` describes.
Manifest NewManifest(const BodyContext& context, StoredValues values);

// For bodies: turns kNotFound for a file of another rank into kFailedPrecondition: hosts do not share `root`. Any other
// status, and every status without a root, is returned unchanged.
absl::Status ExplainNotFound(const BodyContext& context, const absl::Status& status);

// A new SaveIdentity::id: 32 hexadecimal digits, different in every save.
std::string NewSaveId();

// kInvalidArgument when a checkpoint of `type` cannot have `parity` parity files.
absl::Status CheckParityCount(int parity, StateDictType type);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_BODY_H_
