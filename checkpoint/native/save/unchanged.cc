// SPDX-License-Identifier: Apache-2.0
//
// How a writer finds the datasets that it need not write again:
//
//   1. Candidates: datasets of the new tree for which the writer's own file of the base has an extent with the same
//      tensors, elements and places.
//   2. Each candidate is digested and compared with the digests in the base's manifest; the base's file is not read.
//      XXH3 of 128 bits decides: equal digests count as equal bytes.
//   3. Files of which at least half is equal are linked (link(2), so both checkpoints own the bytes), and the tree then
//      refers to the extents in them.
#include "fsdp/checkpoint/native/save/unchanged.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/record.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// An extent of the base: the payload of one dataset of its file `file`.
struct BaseExtent {
  int file = 0;
  const StoredExtent* extent = nullptr;
};

// A dataset of the tree: one tensor's own, or a flat one.
struct TensorDataset {
  size_t index = 0;  // into tree.tensors
};
struct FlatDataset {
  int index = 0;  // into tree.flats
};

// A dataset of the tree that the base may have.
struct Candidate {
  std::variant<TensorDataset, FlatDataset> dataset;
  BaseExtent base;
  BlockReader read;
};

bool operator==(const FlatUnitLayout::Entry& a, const FlatUnitLayout::Entry& b) {
  return a.fqn == b.fqn && a.offset == b.offset && a.numel == b.numel;
}

bool SameUnits(const std::vector<FlatUnitLayout>& a, const std::vector<FlatUnitLayout>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const FlatUnitLayout& x, const FlatUnitLayout& y) {
    return x.name == y.name && x.unsharded_numel == y.unsharded_numel &&
           std::equal(x.parameters.begin(), x.parameters.end(), y.parameters.begin(), y.parameters.end(),
                      [](const auto& p, const auto& q) { return p == q; });
  });
}

// Finds candidates only by names and intervals; nothing is read.
class Finder {
 public:
  Finder(const Manifest& base, const TreeFile& tree) : base_(base), tree_(tree) {
    for (const StoredTensor& tensor : base.tensors) tensors_[tensor.key] = &tensor;
    // A writer links only its own files: the file that it wrote for the base, and its earlier files that the base
    // links.
    for (const StoredFile& file : base.files) {
      is_mine_.push_back((file.origin ? file.origin->name : file.name) == tree.name);
    }
  }

  std::vector<Candidate> Find() const {
    std::vector<Candidate> candidates;
    // A flat dataset is a candidate when one extent of the base holds all of its tensors, at the same places.
    std::map<int, std::optional<BaseExtent>> flats;
    for (size_t i = 0; i < tree_.tensors.size(); ++i) {
      const TreeFile::TensorPart& tensor = tree_.tensors[i];
      if (tensor.interval.empty()) continue;
      const std::optional<BaseExtent> found = FindTensor(tensor);
      if (const TreeFile::InFlat* place = tensor.in_flat()) {
        auto& flat = flats.try_emplace(place->flat, found).first->second;
        if (!found || !flat || found->extent != flat->extent) flat.reset();
      } else if (found) {
        candidates.push_back({TensorDataset{i}, *found, TensorBlockReader(tensor, tensor.interval.begin)});
      }
    }
    for (const auto& [flat, found] : flats) {
      if (found) candidates.push_back({FlatDataset{flat}, *found, FlatBlockReader(tree_, flat)});
    }
    return candidates;
  }

 private:
  // The extent with the same contents as the dataset of `tensor`, or, for a flat dataset, with the tensor's part of it.
  std::optional<BaseExtent> FindTensor(const TreeFile::TensorPart& tensor) const {
    const auto found = tensors_.find(tensor.key);
    if (found == tensors_.end() || found->second->dtype != tensor.dtype || found->second->shape != tensor.shape) {
      return std::nullopt;
    }
    const int64_t size = SizeOf(tensor.dtype);
    const TreeFile::InFlat* flat = tensor.in_flat();
    for (const StoredInterval& stored : found->second->intervals) {
      if (stored.interval != tensor.interval || !is_mine_[stored.file]) continue;
      const StoredExtent* extent = ExtentAt(base_.files[stored.file], stored.offset);
      const int64_t numel = flat == nullptr ? tensor.interval.size() : tree_.flats[flat->flat].numel;
      const int64_t begin = flat == nullptr ? 0 : flat->begin;
      if (extent->range != ByteRange{stored.offset - begin * size, numel * size}) return std::nullopt;
      return BaseExtent{stored.file, extent};
    }
    return std::nullopt;
  }

  const Manifest& base_;
  const TreeFile& tree_;
  std::map<StateKey, const StoredTensor*> tensors_;
  std::vector<bool> is_mine_;  // by file of the base
};

// Keeps the candidates whose bytes have the digests that the base recorded.
absl::Status KeepEqual(std::vector<Candidate>& candidates, ThreadPool& pool) {
  BlockBuffers buffers;
  std::vector<char> is_equal(candidates.size(), 0);
  FSDP_RETURN_IF_ERROR(pool.ParallelFor(static_cast<int64_t>(candidates.size()), [&](int64_t i) -> absl::Status {
    const StoredExtent& extent = *candidates[i].base.extent;
    const BlockBuffers::Lease scratch = buffers.Take();
    for (size_t block = 0; block < extent.digests.size(); ++block) {
      const ByteRange range = extent.block(static_cast<int64_t>(block));
      FSDP_ASSIGN_OR_RETURN(const std::byte* const bytes,
                            candidates[i].read(range.offset - extent.range.offset, range.nbytes, scratch.data()));
      if (DigestOf(absl::MakeConstSpan(bytes, range.nbytes)) != extent.digests[block]) return absl::OkStatus();
    }
    is_equal[i] = 1;
    return absl::OkStatus();
  }));
  size_t kept = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (is_equal[i] == 0) continue;
    if (kept != i) candidates[kept] = std::move(candidates[i]);
    ++kept;
  }
  candidates.resize(kept);
  return absl::OkStatus();
}

// The files of the base that are worth linking, with the bytes that are still referenced: at least half of the file. So
// unused bytes that links keep on the disk never exceed the size of the live data.
std::map<int, int64_t> UsefulFiles(const Manifest& base, const std::vector<Candidate>& candidates) {
  std::map<int, int64_t> used;
  for (const Candidate& candidate : candidates) used[candidate.base.file] += candidate.base.extent->range.nbytes;
  for (auto it = used.begin(); it != used.end();) {
    it = it->second * 2 < base.files[it->first].nbytes ? used.erase(it) : std::next(it);
  }
  return used;
}

// "rank-00000-of-00004.step-00000100.h5": the name in this save of another save's file.
std::string LinkName(const StoredFile& file, int64_t step) {
  if (file.origin) return file.name;
  return absl::StrCat(std::string(absl::StripSuffix(file.name, ".h5")), ".", StepName(step), ".h5");
}

// True for a file whose size and record match the manifest of the base, so that damage which is cheap to find in an
// earlier checkpoint does not spread to this one. Finding other damage would require reading the whole file.
bool IsWhatWasSaved(FileSystem& files, const BaseCheckpoint& base, int index) {
  const absl::StatusOr<std::unique_ptr<File>> file = OpenStoredFile(files, base.path, base.manifest, index);
  return file.ok() && CheckRecord(**file, base.manifest, index).ok();
}

// Makes the tensors of the candidates in linked files refer to these files, and removes flat datasets that are no
// longer needed. `links`: index into tree.links, by file of the base.
void ReferToLinks(const std::vector<Candidate>& candidates, const std::map<int, int>& links, TreeFile& tree) {
  std::vector<bool> is_linked(tree.flats.size(), false);
  for (const Candidate& candidate : candidates) {
    const auto link = links.find(candidate.base.file);
    if (link == links.end()) continue;
    const int64_t offset = candidate.base.extent->range.offset;
    if (const auto* tensor = std::get_if<TensorDataset>(&candidate.dataset)) {
      tree.tensors[tensor->index].place = TreeFile::Linked{link->second, offset};
      continue;
    }
    const int flat = std::get<FlatDataset>(candidate.dataset).index;
    is_linked[flat] = true;
    for (TreeFile::TensorPart& tensor : tree.tensors) {
      const TreeFile::InFlat* place = tensor.in_flat();
      if (place == nullptr || place->flat != flat) continue;
      tensor.place = TreeFile::Linked{link->second, offset + place->begin * SizeOf(tensor.dtype)};
    }
  }
  std::vector<TreeFile::FlatPart> kept;
  std::vector<int> new_index;  // by old index; -1 for a flat dataset that is removed
  for (size_t i = 0; i < tree.flats.size(); ++i) {
    new_index.push_back(is_linked[i] ? -1 : static_cast<int>(kept.size()));
    if (!is_linked[i]) kept.push_back(std::move(tree.flats[i]));
  }
  tree.flats = std::move(kept);
  for (TreeFile::TensorPart& tensor : tree.tensors) {
    if (auto* place = std::get_if<TreeFile::InFlat>(&tensor.place)) place->flat = new_index[place->flat];
  }
}

std::string WhyNothingIsLinked(const Manifest& base, const Manifest& manifest) {
  if (manifest.save.type == StateDictType::kFull) return "a full checkpoint is one file, which is written whole";
  if (!IsAlike(base, manifest.save, manifest.units)) return "its kind, number of rank files or wrapping is another";
  return "of each less than half is unchanged, or it is damaged, or the file system does not link files";
}

// Bytes of tensors of `manifest` that are stored in files of earlier saves.
int64_t LinkedBytes(const Manifest& manifest) {
  int64_t nbytes = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredInterval& stored : tensor.intervals) {
      if (manifest.files[stored.file].origin) nbytes += stored.interval.size() * SizeOf(tensor.dtype);
    }
  }
  return nbytes;
}

}  // namespace

absl::StatusOr<BaseCheckpoint> ReadBaseCheckpoint(FileSystem& files, const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, path));
  return BaseCheckpoint{path, std::move(manifest)};
}

bool IsAlike(const Manifest& base, const SaveIdentity& save, const std::vector<FlatUnitLayout>& units) {
  return save.type != StateDictType::kFull && base.save.type == save.type && base.save.writers == save.writers &&
         (save.type != StateDictType::kLocal || SameUnits(base.units, units));
}

absl::Status LinkUnchanged(FileSystem& files, const BaseCheckpoint& base, const std::string& directory, TreeFile& tree,
                           ThreadPool& pool) {
  const Manifest& manifest = base.manifest;
  std::vector<Candidate> candidates = Finder(manifest, tree).Find();
  FSDP_RETURN_IF_ERROR(KeepEqual(candidates, pool));
  std::map<int, int> links;  // file of the base -> index into tree.links
  for (const auto& [file, nbytes] : UsefulFiles(manifest, candidates)) {
    if (!IsWhatWasSaved(files, base, file)) continue;
    StoredFile linked = manifest.files[file];
    linked.name = LinkName(linked, manifest.save.step);
    if (!linked.origin) linked.origin = StoredOrigin{manifest.save.id, manifest.save.step, manifest.files[file].name};
    const absl::Status status =
        files.Link(JoinPath(base.path, manifest.files[file].name), JoinPath(directory, linked.name));
    // It cannot be linked, is gone, or two saves of one step wrote files of this name.
    if (absl::IsUnimplemented(status) || absl::IsNotFound(status) || absl::IsAlreadyExists(status)) continue;
    FSDP_RETURN_IF_ERROR(status);
    links[file] = static_cast<int>(tree.links.size());
    tree.links.push_back(std::move(linked));
  }
  ReferToLinks(candidates, links, tree);
  return absl::OkStatus();
}

std::string DescribeLinks(const absl::StatusOr<BaseCheckpoint>& base, const Manifest& manifest) {
  if (!base.ok()) {
    return absl::StrCat("everything was written, since the checkpoint before cannot be read: ",
                        std::string(base.status().message()));
  }
  const std::string name = SplitPath(base->path).name;
  const int64_t linked = LinkedBytes(manifest);
  if (linked == 0) {
    return absl::StrCat("everything was written, since no file of ", name,
                        " could be linked: ", WhyNothingIsLinked(base->manifest, manifest));
  }
  int64_t nbytes = 0;
  for (const StoredTensor& tensor : manifest.tensors) nbytes += tensor.shape.numel() * SizeOf(tensor.dtype);
  return absl::StrCat(linked, " of ", nbytes, " bytes are unchanged since ", name, " and were not written again");
}

}  // namespace fsdp
