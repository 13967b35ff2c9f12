// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/sharded_index.h"

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/flat_place.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

constexpr char kWarning[] =
    "The tensors of this file lie in the rank-*.h5 files, which must be in the same directory as this one. Where such "
    "a file is missing or cut short, HDF5 shows fill values (NaN, or 0 for integers) without an error. To check that "
    "all is there and undamaged: ckpt verify DIRECTORY";

// The part of a flat dataset that holds `stored`. The extent of the interval is the whole dataset, so its length is the
// dataset's, which HDF5 requires for every source.
VirtualPart PartOfFlat(const StoredTensor& tensor, const StoredInterval& stored, int unit, const StoredFile& file) {
  const ByteRange dataset = ExtentAt(file, stored.offset)->range;
  const int64_t size = SizeOf(tensor.dtype);
  return {stored.interval,
          file.name,
          FlatDatasetPath(unit, tensor.key, tensor.dtype),
          {dataset.nbytes / size},
          (stored.offset - dataset.offset) / size};
}

TreeFile::TensorPart Shown(const StoredTensor& tensor, const Manifest& manifest, const FlatPlaces& places) {
  const auto place = manifest.save.type == StateDictType::kLocal ? places.Find(tensor.key, tensor.shape) : std::nullopt;
  TreeFile::Shown shown;
  for (const StoredInterval& stored : tensor.intervals) {
    const StoredFile& file = manifest.files[stored.file];
    shown.parts.push_back(place ? PartOfFlat(tensor, stored, place->unit, file)
                                : VirtualPart{stored.interval, file.name, DatasetPath(tensor.key),
                                              PartDims(tensor.shape, stored.interval)});
  }
  TreeFile::TensorPart part = {.key = tensor.key,
                               .aliases = tensor.aliases,
                               .dtype = tensor.dtype,
                               .shape = tensor.shape,
                               .interval = {0, tensor.shape.numel()}};
  // A tensor without elements has no parts; the index has a dataset for it.
  if (!shown.parts.empty()) part.place = std::move(shown);
  return part;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ShardedIndex>> ShardedIndex::Create(const SaveIdentity& save,
                                                                         const std::vector<FlatUnitLayout>& units,
                                                                         const std::vector<FileRecord>& records,
                                                                         std::vector<TreeFile::Text> texts) {
  std::unique_ptr<ShardedIndex> index(new ShardedIndex);
  Manifest& manifest = index->manifest_;
  FSDP_ASSIGN_OR_RETURN(static_cast<StoredValues&>(manifest), MergeRecords(records));
  manifest.save = save;
  manifest.units = units;
  TreeFile& tree = index->tree_;
  tree.name = kCheckpointFileName;
  tree.texts = std::move(texts);
  tree.attributes = RootAttributes(save);
  tree.attributes["warning"] = std::string(kWarning);
  tree.is_for_all_programs = true;
  const FlatPlaces places(units);
  for (const StoredTensor& tensor : manifest.tensors) {
    FSDP_RETURN_IF_ERROR(CheckCovered(tensor));
    tree.tensors.push_back(Shown(tensor, manifest, places));
  }
  // LaidOutFile keeps a pointer to tree_, which is why Create returns a unique_ptr and the index cannot be copied.
  FSDP_ASSIGN_OR_RETURN(index->file_, LaidOutFile::Create(tree));
  return index;
}

absl::StatusOr<Manifest> ShardedIndex::Write(FileSystem& files, const std::string& directory,
                                             const std::vector<FileRecord>& records, ThreadPool& pool) const {
  FSDP_ASSIGN_OR_RETURN(const StoredValues index, file_->Write(files, directory, pool, {}));
  Manifest manifest = manifest_;
  // The files again, now with digests; they come in the same order, so indices into them stay valid.
  manifest.files.clear();
  for (const FileRecord& record : records) {
    manifest.files.insert(manifest.files.end(), record.files.begin(), record.files.end());
  }
  const int file = static_cast<int>(manifest.files.size());
  manifest.files.push_back(index.files[0]);
  manifest.texts = index.texts;
  // In the values of the index they are in file 0; in the manifest the index is the last file.
  for (StoredText& text : manifest.texts) text.file = file;
  for (StoredTensor& tensor : manifest.tensors) {
    if (tensor.intervals.empty()) tensor.intervals.push_back({{0, 0}, file, 0});
  }
  return manifest;
}

}  // namespace fsdp
