// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/save/streamed_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/save/save_plan.h"
#include "fsdp/checkpoint/tree/tree_parts.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<StreamedFile>> StreamedFile::Create(FileSystem& files, std::string directory,
                                                                   TreeFile tree, const Manifest& identity,
                                                                   ThreadPool& pool) {
  std::unique_ptr<StreamedFile> file(new StreamedFile(files, std::move(directory), pool));
  tree.is_shared = true;
  FSDP_ASSIGN_OR_RETURN(file->made_, WriteTreeFile(files, file->directory_, tree, identity, pool, {}));
  file->offsets_ = TensorOffsets(file->made_);
  file->written_.files.push_back({});
  for (size_t i = 0; i < file->made_.tensors.size(); ++i) {
    StoredTensor tensor = file->made_.tensors[i];
    tensor.intervals.clear();
    file->index_[tensor.key] = i;
    file->written_.tensors.push_back(std::move(tensor));
  }
  return file;
}

absl::Status StreamedFile::Write(const StateDict& part) {
  FSDP_ASSIGN_OR_RETURN(const SavePlan plan, PlanSave(part));
  std::vector<int64_t> offsets;
  std::vector<size_t> places;
  for (const TreeFile::TensorPart& tensor : plan.tensors) {
    const auto found = index_.find(tensor.key);
    const StoredTensor* laid_out = found == index_.end() ? nullptr : &made_.tensors[found->second];
    if (laid_out == nullptr || laid_out->shape != tensor.shape || laid_out->dtype != tensor.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(tensor.key), ": ", tensor.shape.ToString(), " ", std::string(DTypeName(tensor.dtype)),
          laid_out == nullptr ? " was not among the contents that the file was laid out for"
                              : absl::StrCat(" is not the ", laid_out->shape.ToString(), " ",
                                             std::string(DTypeName(laid_out->dtype)), " that was laid out for it")));
    }
    offsets.push_back(offsets_[found->second]);
    places.push_back(found->second);
  }
  FSDP_ASSIGN_OR_RETURN(Manifest wrote,
                        WriteTreeParts(files_, directory_, made_.files[0].name, plan.tensors, offsets, {}, pool_));
  for (size_t i = 0; i < places.size(); ++i) {
    auto& intervals = written_.tensors[places[i]].intervals;
    intervals.insert(intervals.end(), wrote.tensors[i].intervals.begin(), wrote.tensors[i].intervals.end());
  }
  auto& extents = written_.files[0].extents;
  for (StoredExtent& extent : wrote.files[0].extents) extents.push_back(std::move(extent));
  return absl::OkStatus();
}

absl::StatusOr<Manifest> StreamedFile::Finish() && {
  FSDP_RETURN_IF_ERROR(MergeTreeParts({std::move(written_)}, made_));
  return std::move(made_);
}

}  // namespace fsdp
