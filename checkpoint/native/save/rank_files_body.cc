// SPDX-License-Identifier: Apache-2.0
//
// The body of a SHARDED or LOCAL checkpoint. All ranks take every step and agree at its end, so an error of one rank is
// returned on all:
//
//   1. Each owner writes its rank files and fsyncs them. Their names, sizes and the digests of their records are
//      gathered: enough for rank 0 to find the files and to trust their records.
//   2. With parity: rank 0 makes the parity files, with room for all bytes, and shares the plan. The owners divide the
//      blocks evenly; each reads its blocks of all rank files, writes their parity, and fsyncs. Digests are gathered.
//   3. (Describe) Rank 0 reads the records of the other ranks' files back from the disk, which also checks that all
//      hosts see one directory. The records together must cover every tensor exactly once; then rank 0 writes
//      checkpoint.h5 (ShardedIndex).
//
// Records travel through the files and not through Gather because they are large: their size grows with tensors and
// digests, while Gather is meant for small blobs.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/record.h"
#include "fsdp/checkpoint/native/parity/parity_files.h"
#include "fsdp/checkpoint/native/save/checkpoint_body.h"
#include "fsdp/checkpoint/native/save/save_agreement.h"
#include "fsdp/checkpoint/native/save/sharded_index.h"

namespace fsdp {
namespace {

class RankFiles final : public CheckpointBody {
 public:
  RankFiles(BodyContext context, RankFilesOptions options)
      : context_(std::move(context)), options_(std::move(options)), owners_(options_.owners) {
    owners_.erase(std::unique(owners_.begin(), owners_.end()), owners_.end());
  }

  absl::Status Write() override {
    FSDP_RETURN_IF_ERROR(context_.group.Agree(WriteOwnFiles()));
    FSDP_RETURN_IF_ERROR(GatherWrittenFiles());
    return options_.parity > 0 ? WriteParity() : absl::OkStatus();
  }

  absl::StatusOr<Manifest> Describe() override {
    FSDP_RETURN_IF_ERROR(gathered_);
    FSDP_ASSIGN_OR_RETURN(const std::vector<FileRecord> records, ReadRecords());
    if (index_ == nullptr) FSDP_RETURN_IF_ERROR(LayOutIndex(records));
    FSDP_ASSIGN_OR_RETURN(Manifest manifest, index_->Write(context_.files, context_.directory, records, context_.pool));
    if (options_.parity > 0) AddParity(parity_, parity_digests_, manifest);
    return manifest;
  }

 private:
  int writers() const { return static_cast<int>(options_.owners.size()); }
  bool owns(int writer) const { return options_.owners[writer] == context_.group.rank(); }

  absl::Status WriteOwnFiles() {
    for (int writer = 0; writer < writers(); ++writer) {
      if (!owns(writer)) continue;
      FSDP_ASSIGN_OR_RETURN(const TreeFile tree, options_.tree(context_, writer));
      absl::StatusOr<FileRecord> record = WriteRankFile(tree);
      if (!record.ok()) return ExplainNotFound(context_, record.status());
      own_records_[writer] = *std::move(record);
    }
    return absl::OkStatus();
  }

  // If rank 0 writes the only rank file, the contents of the index are known as soon as that file is laid out. So HDF5
  // lays out the index on one thread while the others write payload.
  absl::StatusOr<FileRecord> WriteRankFile(const TreeFile& tree) {
    FSDP_ASSIGN_OR_RETURN(const LaidOutFile file, LaidOutFile::Create(tree));
    absl::StatusOr<StoredValues> written;
    const auto write = [&] {
      written = file.Write(context_.files, context_.directory, context_.pool, context_.write);
      return written.status();
    };
    const auto lay_out_index = [&] { return LayOutIndex({FileRecord{*tree.record, file.Describe()}}); };
    const bool is_only_file = writers() == 1 && context_.group.rank() == 0;
    FSDP_RETURN_IF_ERROR(is_only_file ? context_.pool.Run({write, lay_out_index}) : write());
    return FileRecord{*tree.record, *std::move(written)};
  }

  absl::Status LayOutIndex(const std::vector<FileRecord>& records) {
    FSDP_ASSIGN_OR_RETURN(index_, ShardedIndex::Create(context_.save, context_.units, records, context_.texts));
    return absl::OkStatus();
  }

  // Fills written_ on rank 0. A rank of several has at most one file, so one blob per rank is enough; rank 0 needs no
  // blob for its own files.
  absl::Status GatherWrittenFiles() {
    const std::string mine = own_records_.empty() ? "" : EncodeWrittenFile(Written(own_records_.begin()->second));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, context_.group.Gather(mine));
    if (context_.group.rank() == 0) gathered_ = DecodeWrittenFiles(blobs);
    return absl::OkStatus();
  }

  absl::Status DecodeWrittenFiles(const std::vector<std::string>& blobs) {
    for (int writer = 0; writer < writers(); ++writer) {
      if (owns(writer)) {
        written_.push_back(Written(own_records_.at(writer)));
      } else {
        FSDP_ASSIGN_OR_RETURN(written_.emplace_back(), DecodeWrittenFile(blobs[options_.owners[writer]]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteParity() {
    SaveGroup& group = context_.group;
    FSDP_RETURN_IF_ERROR(group.Agree(group.rank() == 0 ? MakeParityFiles() : absl::OkStatus()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> plans, group.Gather(EncodeParityPlan(parity_)));
    const absl::StatusOr<std::vector<Digest>> digests = WriteOwnParity(plans[0]);
    FSDP_RETURN_IF_ERROR(group.Agree(digests.status()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group.Gather(EncodeDigests(*digests)));
    for (const int owner : owners_) {
      FSDP_ASSIGN_OR_RETURN(parity_digests_.emplace_back(), DecodeDigests(blobs[owner]));
    }
    return absl::OkStatus();
  }

  absl::Status MakeParityFiles() {
    FSDP_RETURN_IF_ERROR(gathered_);
    std::vector<ParityPlan::DataFile> data;
    for (const WrittenFile& file : written_) {
      data.push_back({file.name, file.nbytes});
      for (const auto& [name, nbytes] : file.links) data.push_back({name, nbytes});
    }
    FSDP_ASSIGN_OR_RETURN(parity_, PlanParity(std::move(data), options_.parity));
    return CreateParityFiles(context_.files, context_.directory, parity_);
  }

  absl::StatusOr<std::vector<Digest>> WriteOwnParity(const std::string& shared_plan) {
    const auto position = std::find(owners_.begin(), owners_.end(), context_.group.rank());
    if (position == owners_.end()) return std::vector<Digest>();
    FSDP_ASSIGN_OR_RETURN(const ParityPlan plan, DecodeParityPlan(shared_plan));
    const Interval blocks =
        ParityShare(plan, static_cast<int>(owners_.size()), static_cast<int>(position - owners_.begin()));
    return WriteParityBlocks(context_.files, context_.directory, plan, blocks, context_.pool);
  }

  // The records, by writer. Rank 0's own are in memory.
  absl::StatusOr<std::vector<FileRecord>> ReadRecords() {
    std::vector<FileRecord> records;
    for (int writer = 0; writer < writers(); ++writer) {
      if (owns(writer)) {
        records.push_back(std::move(own_records_.at(writer)));
        continue;
      }
      absl::StatusOr<FileRecord> record = ReadRecord(context_.files, context_.directory, written_[writer]);
      if (absl::IsNotFound(record.status())) {
        return ExplainNotFound(
            context_, absl::NotFoundError(absl::StrCat("rank 0 does not see the file of rank ", options_.owners[writer],
                                                       ": ", std::string(record.status().message()))));
      }
      FSDP_RETURN_IF_ERROR(record.status());
      records.push_back(*std::move(record));
    }
    return records;
  }

  const BodyContext context_;
  const RankFilesOptions options_;
  std::vector<int> owners_;                // ranks that own files, each once, in the order of their files
  std::map<int, FileRecord> own_records_;  // by writer: the files that this rank wrote

  // The members below are used only on rank 0. Rank 0's error of decoding the gathered blobs. It is returned at the
  // next step on which all ranks agree.
  absl::Status gathered_;
  std::vector<WrittenFile> written_;  // by writer
  ParityPlan parity_;
  std::vector<std::vector<Digest>> parity_digests_;  // by owner
  std::unique_ptr<const ShardedIndex> index_;        // null until it is laid out
};

}  // namespace

std::unique_ptr<CheckpointBody> NewRankFiles(BodyContext context, RankFilesOptions options) {
  return std::make_unique<RankFiles>(std::move(context), std::move(options));
}

}  // namespace fsdp
