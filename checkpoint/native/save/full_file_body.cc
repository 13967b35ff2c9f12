// SPDX-License-Identifier: Apache-2.0
//
// The three bodies of a FULL checkpoint, whose one file is checkpoint.h5. Equal states give equal files with any of
// them, because the layout depends only on names, dtypes, shapes and texts.
//
//   whole file     rank 0 has all elements: one call of WriteTreeFile.
//   shared file    rank 0 makes the file without elements of tensors and shares the offset of each tensor;
//                  then every writer writes its elements with O_DIRECT in whole pages; after all have (the barrier),
//                  the ends that share a page with another writer go through the page cache. No byte of a tensor is
//                  sent to another rank.
//   streamed file  rank 0 makes the same file and writes each tensor when the stream supplies it.
//
// In the last two, the written parts become the manifest's intervals and extents (MergeTreeParts), which also finds a
// tensor that is not covered exactly once.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/save/checkpoint_body.h"
#include "fsdp/checkpoint/native/save/save_agreement.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

TreeFile FullTree(const BodyContext& context, std::vector<TreeFile::TensorPart> tensors) {
  TreeFile tree;
  tree.name = kCheckpointFileName;
  tree.tensors = std::move(tensors);
  tree.texts = context.texts;
  tree.attributes = RootAttributes(context.save);
  tree.is_for_all_programs = true;
  tree.laid_out = context.laid_out;
  return tree;
}

class WholeFile final : public CheckpointBody {
 public:
  WholeFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors)
      : context_(std::move(context)), tree_(FullTree(context_, std::move(tensors))) {}

  absl::Status Write() override {
    return context_.group.Agree(context_.group.rank() == 0 ? WriteFile() : absl::OkStatus());
  }

  absl::StatusOr<Manifest> Describe() override { return NewManifest(context_, std::move(values_)); }

 private:
  // The tree is not needed afterwards, and may be as large as the manifest.
  absl::Status WriteFile() {
    absl::StatusOr<StoredValues> values =
        WriteTreeFile(context_.files, context_.directory, tree_, context_.pool, context_.write);
    if (!values.ok()) return ExplainNotFound(context_, values.status());
    values_ = *std::move(values);
    tree_ = {};
    return absl::OkStatus();
  }

  const BodyContext context_;
  TreeFile tree_;
  StoredValues values_;
};

// Makes a file with room for its tensors, for other calls to fill.
absl::StatusOr<StoredValues> MakeFileToFill(const BodyContext& context, std::vector<TreeFile::TensorPart> tensors) {
  TreeFile tree = FullTree(context, std::move(tensors));
  tree.is_shared = true;
  for (TreeFile::TensorPart& tensor : tree.tensors) tensor.interval = {0, tensor.shape.numel()};
  return WriteTreeFile(context.files, context.directory, tree, context.pool, {});
}

class SharedFile final : public CheckpointBody {
 public:
  SharedFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors, std::vector<int> writers)
      : context_(std::move(context)), tensors_(std::move(tensors)), writers_(std::move(writers)) {}

  absl::Status Write() override {
    SaveGroup& group = context_.group;
    FSDP_RETURN_IF_ERROR(group.Agree(group.rank() == 0 ? MakeFile() : absl::OkStatus()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> offsets, group.Gather(EncodeOffsets(TensorOffsets(made_))));
    // The barrier is a collective, so this rank must take part in it once even if it has nothing to write or cannot
    // open the file. See write_queue.h for why no rank writes through the page cache while another one writes directly.
    std::optional<absl::Status> agreed;
    const WriteBarrier barrier = [&](const absl::Status& written) { return agreed.emplace(group.Agree(written)); };
    const absl::StatusOr<StoredValues> part = WriteOwnElements(offsets[0], barrier);
    FSDP_RETURN_IF_ERROR(agreed ? *agreed : barrier(part.status()));
    FSDP_RETURN_IF_ERROR(group.Agree(part.status()));
    Manifest mine;
    mine.save.id = context_.save.id;  // a part is decoded as a manifest, which must name its save
    static_cast<StoredValues&>(mine) = *part;
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group.Gather(EncodeManifest(mine)));
    if (group.rank() == 0) decoded_ = DecodeParts(blobs);
    return absl::OkStatus();
  }

  absl::StatusOr<Manifest> Describe() override {
    FSDP_RETURN_IF_ERROR(decoded_);
    FSDP_RETURN_IF_ERROR(MergeTreeParts(parts_, made_));
    return NewManifest(context_, std::move(made_));
  }

 private:
  absl::Status MakeFile() {
    FSDP_ASSIGN_OR_RETURN(made_, MakeFileToFill(context_, tensors_));
    return absl::OkStatus();
  }

  absl::Status DecodeParts(const std::vector<std::string>& blobs) {
    for (const int writer : writers_) {
      FSDP_ASSIGN_OR_RETURN(parts_.emplace_back(), DecodeManifest(blobs[writer]));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StoredValues> WriteOwnElements(const std::string& shared_offsets, const WriteBarrier& barrier) {
    if (std::find(writers_.begin(), writers_.end(), context_.group.rank()) == writers_.end()) return StoredValues();
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, DecodeOffsets(shared_offsets));
    absl::StatusOr<StoredValues> part = WriteTreeParts(context_.files, context_.directory, kCheckpointFileName,
                                                       tensors_, offsets, barrier, context_.pool);
    if (!part.ok()) return ExplainNotFound(context_, part.status());
    return part;
  }

  const BodyContext context_;
  const std::vector<TreeFile::TensorPart> tensors_;
  const std::vector<int> writers_;
  StoredValues made_;                // rank 0's: the file
  std::vector<StoredValues> parts_;  // rank 0's: the part of each writer
  absl::Status decoded_;             // rank 0's error of reading the parts; Describe returns it on all ranks
};

class StreamedFile final : public CheckpointBody {
 public:
  StreamedFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors, StateStream stream)
      : context_(std::move(context)), tensors_(std::move(tensors)), stream_(std::move(stream)) {}

  absl::Status Write() override {
    SaveGroup& group = context_.group;
    FSDP_RETURN_IF_ERROR(group.Agree(group.rank() == 0 ? MakeFile() : absl::OkStatus()));
    return group.Agree(stream_([this](const StateDict& part) { return WritePart(part); }));
  }

  absl::StatusOr<Manifest> Describe() override {
    FSDP_RETURN_IF_ERROR(MergeTreeParts({std::move(written_)}, made_));
    return NewManifest(context_, std::move(made_));
  }

 private:
  absl::Status MakeFile() {
    FSDP_ASSIGN_OR_RETURN(made_, MakeFileToFill(context_, tensors_));
    offsets_ = TensorOffsets(made_);
    written_.files.emplace_back();
    written_.tensors = made_.tensors;
    for (size_t i = 0; i < made_.tensors.size(); ++i) {
      index_[made_.tensors[i].key] = i;
      written_.tensors[i].intervals.clear();
    }
    return absl::OkStatus();
  }

  // Writes and fsyncs all tensors of `part`, which are whole.
  absl::Status WritePart(const StateDict& part) {
    FSDP_ASSIGN_OR_RETURN(const SavePlan plan, PlanSave(part));
    std::vector<size_t> places;  // in made_.tensors, by tensor of the plan
    std::vector<int64_t> offsets;
    for (const TreeFile::TensorPart& tensor : plan.tensors) {
      FSDP_ASSIGN_OR_RETURN(const size_t place, PlaceOf(tensor));
      places.push_back(place);
      offsets.push_back(offsets_[place]);
    }
    FSDP_ASSIGN_OR_RETURN(StoredValues values, WriteTreeParts(context_.files, context_.directory, kCheckpointFileName,
                                                              plan.tensors, offsets, {}, context_.pool));
    for (size_t i = 0; i < places.size(); ++i) {
      auto& intervals = written_.tensors[places[i]].intervals;
      intervals.insert(intervals.end(), values.tensors[i].intervals.begin(), values.tensors[i].intervals.end());
    }
    auto& extents = written_.files[0].extents;
    for (StoredExtent& extent : values.files[0].extents) extents.push_back(std::move(extent));
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> PlaceOf(const TreeFile::TensorPart& tensor) const {
    const auto found = index_.find(tensor.key);
    const std::string subject = absl::StrCat(fsdp::Describe(tensor.key), ": ", tensor.shape.ToString(), " ",
                                             std::string(DTypeName(tensor.dtype)));
    if (found == index_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(subject, " was not among the contents that the file was laid out for"));
    }
    const StoredTensor& expected = made_.tensors[found->second];
    if (expected.shape == tensor.shape && expected.dtype == tensor.dtype) return found->second;
    return absl::InvalidArgumentError(absl::StrCat(subject, " is not the ", expected.shape.ToString(), " ",
                                                   std::string(DTypeName(expected.dtype)),
                                                   " that was laid out for it"));
  }

  const BodyContext context_;
  const std::vector<TreeFile::TensorPart> tensors_;
  const StateStream stream_;

  // The members below are used only on rank 0.
  StoredValues made_;                 // the file
  StoredValues written_;              // tensors as in made_, with the intervals and extents written so far
  std::vector<int64_t> offsets_;      // by tensor of made_
  std::map<StateKey, size_t> index_;  // into made_.tensors
};

}  // namespace

std::unique_ptr<CheckpointBody> NewWholeFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors) {
  return std::make_unique<WholeFile>(std::move(context), std::move(tensors));
}

std::unique_ptr<CheckpointBody> NewSharedFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors,
                                              std::vector<int> writers) {
  return std::make_unique<SharedFile>(std::move(context), std::move(tensors), std::move(writers));
}

std::unique_ptr<CheckpointBody> NewStreamedFile(BodyContext context, std::vector<TreeFile::TensorPart> tensors,
                                                StateStream stream) {
  return std::make_unique<StreamedFile>(std::move(context), std::move(tensors), std::move(stream));
}

}  // namespace fsdp
