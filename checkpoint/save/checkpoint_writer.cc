// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/save/checkpoint_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/format/flat_place.h"
#include "fsdp/checkpoint/format/tensor_name.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

constexpr char kWarning[] =
    "The tensors of this file lie in the rank-*.h5 files, which must be in the same directory as this one. Where such "
    "a file is missing or cut short, HDF5 shows fill values (NaN, or 0 for integers) without an error. To check that "
    "all is there and undamaged: ckpt verify DIRECTORY";

// The part of a flat dataset that `stored` is.
VirtualPart FlatPart(const StoredTensor& tensor, const StoredInterval& stored, int unit, const StoredFile& file) {
  const ByteRange dataset = ExtentAt(file, stored.offset)->range;
  const int64_t size = SizeOf(tensor.dtype);
  return {stored.interval,
          file.name,
          FlatDatasetPath(unit, tensor.key, tensor.dtype),
          {dataset.nbytes / size},
          (stored.offset - dataset.offset) / size};
}

TreeFile::TensorPart Shown(const StoredTensor& tensor, const Manifest& manifest, const FlatPlaces& places) {
  TreeFile::TensorPart shown;
  shown.key = tensor.key;
  shown.aliases = tensor.aliases;
  shown.dtype = tensor.dtype;
  shown.shape = tensor.shape;
  shown.interval = {0, tensor.shape.numel()};
  const auto place = manifest.type == StateDictType::kLocal ? places.Find(tensor.key, tensor.shape) : std::nullopt;
  for (const StoredInterval& stored : tensor.intervals) {
    const StoredFile& file = manifest.files[stored.file];
    shown.parts.push_back(place ? FlatPart(tensor, stored, place->unit, file)
                                : VirtualPart{stored.interval, file.name, DatasetPath(tensor.key),
                                              PartDims(tensor.shape, stored.interval)});
  }
  return shown;
}

}  // namespace

std::string NewSaveId() { return absl::StrCat(NewNonce(), NewNonce()); }

absl::StatusOr<std::unique_ptr<const ShardedIndex>> ShardedIndex::Create(const std::vector<Manifest>& records,
                                                                         std::vector<TreeFile::Text> texts,
                                                                         const Manifest& identity) {
  std::unique_ptr<ShardedIndex> index(new ShardedIndex);
  Manifest& manifest = index->manifest_ = identity;
  FSDP_RETURN_IF_ERROR(MergeRecords(records, manifest));
  TreeFile& tree = index->tree_;
  tree.name = kCheckpointFileName;
  tree.texts = std::move(texts);
  tree.warning = kWarning;
  const FlatPlaces places(identity.units);
  for (const StoredTensor& tensor : manifest.tensors) {
    FSDP_RETURN_IF_ERROR(CheckCovered(tensor));
    tree.tensors.push_back(Shown(tensor, manifest, places));
  }
  FSDP_ASSIGN_OR_RETURN(index->file_, LaidOutFile::Create(tree, identity));
  return index;
}

absl::StatusOr<Manifest> ShardedIndex::Write(FileSystem& files, const std::string& directory,
                                             const std::vector<Manifest>& records, ThreadPool& pool) const {
  FSDP_ASSIGN_OR_RETURN(const Manifest index, file_->Write(files, directory, pool, {}));
  Manifest manifest = manifest_;
  manifest.files.clear();
  for (const Manifest& record : records) {
    manifest.files.insert(manifest.files.end(), record.files.begin(), record.files.end());
  }
  const int file = static_cast<int>(manifest.files.size());
  manifest.files.push_back(index.files[0]);
  manifest.texts = index.texts;
  for (StoredText& text : manifest.texts) text.file = file;
  for (StoredTensor& tensor : manifest.tensors) {
    if (tensor.intervals.empty()) tensor.intervals.push_back({{0, 0}, file, 0});
  }
  return manifest;
}

absl::StatusOr<Manifest> WriteShardedIndex(FileSystem& files, const std::string& directory,
                                           const std::vector<Manifest>& records, std::vector<TreeFile::Text> texts,
                                           const Manifest& identity, ThreadPool& pool) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<const ShardedIndex> index,
                        ShardedIndex::Create(records, std::move(texts), identity));
  return index->Write(files, directory, records, pool);
}

}  // namespace fsdp
