// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/save/unchanged.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/format/manifest_file.h"
#include "fsdp/checkpoint/format/record.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// A dataset of the tree that may lie in the base, in the extent `extent` of its file `file`.
struct Candidate {
  int file = 0;
  const StoredExtent* extent = nullptr;
  int tensor = -1;  // index into tree.tensors, or
  int flat = -1;    // index into tree.flats
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

class Finder {
 public:
  Finder(const Manifest& base, TreeFile& tree) : base_(base), tree_(tree) {
    for (const StoredTensor& tensor : base.tensors) tensors_[tensor.key] = &tensor;
    // This writer's own files: the one it wrote, and those that it linked itself.
    for (const StoredFile& file : base.files) {
      is_mine_.push_back((file.origin ? file.origin->name : file.name) == tree.name);
    }
  }

  std::vector<Candidate> Find() const {
    std::vector<Candidate> candidates;
    std::map<int, Candidate> flats;
    std::map<int, bool> is_flat_same;
    for (size_t i = 0; i < tree_.tensors.size(); ++i) {
      const TreeFile::TensorPart& tensor = tree_.tensors[i];
      if (tensor.interval.empty()) continue;
      Candidate candidate;
      const bool found = FindTensor(tensor, candidate);
      if (tensor.flat < 0) {
        if (!found) continue;
        candidate.tensor = static_cast<int>(i);
        candidate.read = ReaderOf(tensor);
        candidates.push_back(std::move(candidate));
        continue;
      }
      // A flat dataset is the same when all of its tensors lie in one of the base, at the same places.
      const auto [same, is_first] = is_flat_same.try_emplace(tensor.flat, found);
      candidate.flat = tensor.flat;
      if (is_first) flats[tensor.flat] = candidate;
      same->second = same->second && found && candidate.extent == flats[tensor.flat].extent;
    }
    for (auto& [flat, candidate] : flats) {
      if (!is_flat_same[flat]) continue;
      candidate.read = FlatBlockReader(tree_, flat);
      candidates.push_back(std::move(candidate));
    }
    return candidates;
  }

 private:
  bool FindTensor(const TreeFile::TensorPart& tensor, Candidate& candidate) const {
    const auto found = tensors_.find(tensor.key);
    if (found == tensors_.end() || found->second->dtype != tensor.dtype || found->second->shape != tensor.shape) {
      return false;
    }
    const int64_t size = SizeOf(tensor.dtype);
    for (const StoredInterval& stored : found->second->intervals) {
      if (stored.interval != tensor.interval || !is_mine_[stored.file]) continue;
      candidate.file = stored.file;
      candidate.extent = ExtentAt(base_.files[stored.file], stored.offset);
      const int64_t numel = tensor.flat < 0 ? tensor.interval.size() : tree_.flats[tensor.flat].numel;
      const int64_t begin = tensor.flat < 0 ? 0 : tensor.flat_begin;
      return candidate.extent->range == ByteRange{stored.offset - begin * size, numel * size};
    }
    return false;
  }

  static BlockReader ReaderOf(const TreeFile::TensorPart& tensor) {
    const int64_t size = SizeOf(tensor.dtype);
    return [&tensor, size](int64_t begin, int64_t nbytes, std::byte* scratch) {
      const int64_t first = tensor.interval.begin + begin / size;
      return tensor.read({first, first + nbytes / size}, scratch);
    };
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
    const StoredExtent& extent = *candidates[i].extent;
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

// Files worth linking: at least half of their bytes are still wanted.
std::map<int, int64_t> UsefulFiles(const Manifest& base, const std::vector<Candidate>& candidates) {
  std::map<int, int64_t> used;
  for (const Candidate& candidate : candidates) used[candidate.file] += candidate.extent->range.nbytes;
  for (auto it = used.begin(); it != used.end();) {
    it = it->second * 2 < base.files[it->first].nbytes ? used.erase(it) : std::next(it);
  }
  return used;
}

// "rank-00000-of-00004.step-00000100.h5": the file of another save, as it is called in this one.
std::string LinkName(const StoredFile& file, int64_t step) {
  if (file.origin) return file.name;
  return absl::StrCat(std::string(absl::StripSuffix(file.name, ".h5")), ".", StepName(step), ".h5");
}

// True for a file whose size and record are as the manifest of the base says: a step must not be born damaged because
// an earlier one is. What else of it is damaged only reading all of it would tell.
bool IsWhatWasSaved(FileSystem& files, const BaseCheckpoint& base, int index) {
  const absl::StatusOr<std::unique_ptr<File>> file = OpenStoredFile(files, base.path, base.manifest, index);
  return file.ok() && CheckRecord(**file, base.manifest, index).ok();
}

// Takes what lies in files of the base out of the tree.
void TakeOut(const std::vector<Candidate>& candidates, const std::map<int, int>& links, TreeFile& tree) {
  std::vector<bool> is_flat_linked(tree.flats.size(), false);
  for (const Candidate& candidate : candidates) {
    const auto link = links.find(candidate.file);
    if (link == links.end()) continue;
    if (candidate.flat >= 0) is_flat_linked[candidate.flat] = true;
    for (size_t i = 0; i < tree.tensors.size(); ++i) {
      TreeFile::TensorPart& tensor = tree.tensors[i];
      const bool is_it = candidate.flat >= 0 ? tensor.flat == candidate.flat : static_cast<int>(i) == candidate.tensor;
      if (!is_it) continue;
      tensor.link = link->second;
      tensor.link_offset = candidate.extent->range.offset;
      if (tensor.flat >= 0) tensor.link_offset += tensor.flat_begin * SizeOf(tensor.dtype);
    }
  }
  std::vector<TreeFile::FlatPart> left;
  std::vector<int> new_index(tree.flats.size(), -1);
  for (size_t i = 0; i < tree.flats.size(); ++i) {
    if (is_flat_linked[i]) continue;
    new_index[i] = static_cast<int>(left.size());
    left.push_back(std::move(tree.flats[i]));
  }
  tree.flats = std::move(left);
  for (TreeFile::TensorPart& tensor : tree.tensors) {
    if (tensor.flat >= 0) tensor.flat = new_index[tensor.flat];
  }
}

}  // namespace

bool IsAlike(const Manifest& base, const Manifest& identity) {
  return identity.type != StateDictType::kFull && base.type == identity.type && base.writers == identity.writers &&
         (identity.type != StateDictType::kLocal || SameUnits(base.units, identity.units));
}

absl::Status LinkUnchanged(FileSystem& files, const BaseCheckpoint& base, const Manifest& identity,
                           const std::string& directory, TreeFile& tree, ThreadPool& pool) {
  const Manifest& manifest = base.manifest;
  if (!IsAlike(manifest, identity)) return absl::OkStatus();
  std::vector<Candidate> candidates = Finder(manifest, tree).Find();
  FSDP_RETURN_IF_ERROR(KeepEqual(candidates, pool));
  std::map<int, int> links;  // file of the base -> index into tree.links
  for (const auto& [file, nbytes] : UsefulFiles(manifest, candidates)) {
    if (!IsWhatWasSaved(files, base, file)) continue;
    StoredFile linked = manifest.files[file];
    linked.name = LinkName(linked, manifest.step);
    if (!linked.origin) linked.origin = StoredOrigin{manifest.save_id, manifest.step, manifest.files[file].name};
    const absl::Status status =
        files.Link(JoinPath(base.path, manifest.files[file].name), JoinPath(directory, linked.name));
    if (absl::IsUnimplemented(status) || absl::IsNotFound(status)) continue;  // cannot be linked, or is gone
    FSDP_RETURN_IF_ERROR(status);
    links[file] = static_cast<int>(tree.links.size());
    tree.links.push_back(std::move(linked));
  }
  TakeOut(candidates, links, tree);
  return absl::OkStatus();
}

int64_t LinkedBytes(const Manifest& manifest) {
  int64_t nbytes = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredInterval& stored : tensor.intervals) {
      if (manifest.files[stored.file].origin) nbytes += stored.interval.size() * SizeOf(tensor.dtype);
    }
  }
  return nbytes;
}

}  // namespace fsdp
