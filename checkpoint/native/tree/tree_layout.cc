// SPDX-License-Identifier: Apache-2.0
//
// HDF5 itself places everything: it creates all objects in a file in memory, with payload allocated but never written,
// and reports the offset of each dataset. The bytes that the library did write (superblock, object headers, heaps,
// virtual mappings) are the image that the writer copies to the disk around the payload.
#include "fsdp/checkpoint/native/tree/tree_layout.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "fsdp/base/natural_order.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

// The attribute that keeps the true name of an object whose link is escaped; empty for a name that is not escaped.
std::string IfEscaped(const std::string& name) { return EscapeLinkName(name) == name ? "" : name; }

bool DescribesTensors(const TreeFile& tree) {
  return tree.stands_alone || (tree.is_for_all_programs && tree.tensors.size() <= kMaxDescribedTensors);
}

// About how many bytes HDF5 writes in addition to the payload. The library takes metadata in blocks of this size: too
// large a block wastes space, too small a one scatters the metadata over the file. The estimate determines the offsets
// of datasets, so it must not change, or equal states would no longer give equal files.
int64_t MetadataBytes(const TreeFile& tree) {
  int64_t nbytes = 2048;
  for (const TreeFile::TensorPart& tensor : tree.tensors) {
    if (!tree.HasDataset(tensor)) continue;
    const auto name_bytes = static_cast<int64_t>(tensor.key.fqn.size() + tensor.key.state.size());
    nbytes += 320 + 2 * name_bytes;
    if (DescribesTensors(tree)) nbytes += 160 + name_bytes;
    if (tensor.shown() == nullptr) continue;
    for (const VirtualPart& part : tensor.shown()->parts) {
      nbytes += 120 + static_cast<int64_t>(part.file.size() + part.dataset.size());
    }
  }
  nbytes += 500 * static_cast<int64_t>(tree.flats.size());
  const int64_t blocks = (nbytes + kPageBytes - 1) / kPageBytes;
  return std::clamp(blocks, int64_t{1}, int64_t{256}) * kPageBytes;
}

// The order in which the tensors are laid out, as indices into tree.tensors.
std::vector<size_t> LayoutOrder(const TreeFile& tree) {
  std::vector<size_t> order(tree.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  if (!tree.is_for_all_programs) return order;
  std::vector<std::string> names;
  for (const TreeFile::TensorPart& tensor : tree.tensors) names.push_back(tensor.key.ToString());
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return IsNaturallyBefore(names[a], names[b]); });
  return order;
}

// Adds objects to the file, each after the groups above it. HDF5 keeps the order of creation, so equal trees give equal
// bytes.
class TreeBuilder {
 public:
  TreeBuilder(Hdf5File& file, const TreeFile& tree) : file_(file), tree_(tree) {}

  // The groups above the object of `key`.
  absl::Status AddGroups(const StateKey& key) {
    switch (key.section) {
      case StateKey::Section::kModel:
        return AddGroup("/model", "");
      case StateKey::Section::kExtra:
        return AddGroup("/extra", "");
      case StateKey::Section::kParamGroups:
        return AddGroup("/optim", "");
      case StateKey::Section::kOptimState:
        FSDP_RETURN_IF_ERROR(AddGroup("/optim", ""));
        FSDP_RETURN_IF_ERROR(AddGroup("/optim/state", ""));
        return AddGroup(absl::StrCat("/optim/state/", EscapeLinkName(key.fqn)), IfEscaped(key.fqn));
    }
    return absl::InternalError("not a section of a state dict");
  }

  absl::Status AddGroup(const std::string& path, const std::string& fqn) {
    return groups_.insert(path).second ? file_.AddGroup(path, fqn) : absl::OkStatus();
  }

  absl::StatusOr<ByteRange> AddTensor(const TreeFile::TensorPart& tensor) {
    FSDP_RETURN_IF_ERROR(AddGroups(tensor.key));
    const std::string path = DatasetPath(tensor.key);
    const std::string& name = tensor.key.state.empty() ? tensor.key.fqn : tensor.key.state;
    // Of several links only the attribute tells which is the name.
    const bool has_links = tree_.is_for_all_programs && !tensor.aliases.empty();
    const std::string fqn = DescribesTensors(tree_) || has_links ? name : IfEscaped(name);
    ByteRange range;
    if (tensor.shown() != nullptr) {
      FSDP_RETURN_IF_ERROR(file_.AddVirtual(path, fqn, tensor.dtype, tensor.shape, tensor.shown()->parts));
    } else {
      FSDP_ASSIGN_OR_RETURN(range.offset,
                            file_.AddDataset(path, fqn, tensor.dtype, PartDims(tensor.shape, tensor.interval)));
      range.nbytes = tensor.interval.size() * SizeOf(tensor.dtype);
    }
    for (size_t i = 0; has_links && i < tensor.aliases.size(); ++i) {
      FSDP_RETURN_IF_ERROR(file_.AddHardLink(DatasetPath(StateKey::Model(tensor.aliases[i])), path));
    }
    return range;
  }

  absl::StatusOr<ByteRange> AddFlat(const TreeFile::FlatPart& flat) {
    // "/flat/1/optim/exp_avg/float32": the second group is the unit's.
    for (size_t slash = flat.path.find('/', 1); slash != std::string::npos; slash = flat.path.find('/', slash + 1)) {
      const std::string group = flat.path.substr(0, slash);
      const bool is_unit = std::count(group.begin(), group.end(), '/') == 2;
      FSDP_RETURN_IF_ERROR(AddGroup(group, is_unit ? flat.unit : ""));
    }
    FSDP_ASSIGN_OR_RETURN(const int64_t offset, file_.AddDataset(flat.path, "", flat.dtype, {flat.numel}));
    return ByteRange{offset, flat.nbytes()};
  }

  absl::StatusOr<ByteRange> AddText(const TreeFile::Text& text) {
    FSDP_RETURN_IF_ERROR(AddGroups(text.key));
    FSDP_ASSIGN_OR_RETURN(const int64_t offset, file_.AddText(DatasetPath(text.key), IfEscaped(text.key.fqn),
                                                              static_cast<int64_t>(text.text.size())));
    return ByteRange{offset, text.dataset_bytes()};
  }

 private:
  Hdf5File& file_;
  const TreeFile& tree_;
  std::set<std::string> groups_;
};

// RLIMIT_FSIZE also limits a file in memory, and HDF5 does not survive a file that it cannot close. So a tree that
// might outgrow the limit is refused before it is laid out.
absl::Status CheckSizeLimit(const TreeFile& tree, int64_t record_bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  // An upper bound: every dataset may begin up to a page after the end of the previous one.
  int64_t most = MetadataBytes(tree) + record_bytes + kRecordAlignment;
  const auto add = [&](int64_t nbytes) { most += nbytes + kRecordAlignment; };
  for (const TreeFile::Text& text : tree.texts) add(static_cast<int64_t>(text.text.size()));
  for (const TreeFile::FlatPart& flat : tree.flats) add(flat.nbytes());
  for (const TreeFile::TensorPart& tensor : tree.tensors) {
    if (tree.HasDataset(tensor) && tensor.shown() == nullptr) add(tensor.interval.size() * SizeOf(tensor.dtype));
  }
  if (static_cast<rlim_t>(most) <= limit.rlim_cur) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("it may take ", most,
                                                   " bytes, but files of this process are limited to ", limit.rlim_cur,
                                                   "; raise the limit (ulimit -f)"));
}

}  // namespace

RunMetadata RootAttributes(const SaveIdentity& save) {
  RunMetadata attributes = save.attributes;
  attributes["format"] = std::string("fsdp checkpoint");
  attributes["producer"] = save.producer;
  if (save.has_step) attributes["step"] = save.step;
  return attributes;
}

absl::StatusOr<TreeLayout> LayOutTree(const TreeFile& tree, int64_t record_bytes) {
  FSDP_RETURN_IF_ERROR(CheckSizeLimit(tree, record_bytes));
  const bool shows = std::any_of(tree.tensors.begin(), tree.tensors.end(),
                                 [](const auto& tensor) { return tensor.shown() != nullptr; });
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Hdf5File> file,
                        Hdf5File::Create({.virtual_datasets = shows,
                                          .describes_all = DescribesTensors(tree),
                                          .keeps_order = tree.is_for_all_programs,
                                          .metadata_bytes = MetadataBytes(tree)}));
  TreeBuilder builder(*file, tree);
  TreeRanges ranges;
  for (const auto& [name, value] : tree.attributes) FSDP_RETURN_IF_ERROR(file->SetRootAttribute(name, value));
  // The record comes first, so that a truncated file still has it.
  if (record_bytes != 0) {
    FSDP_RETURN_IF_ERROR(builder.AddGroup("/fsdp", ""));
    FSDP_ASSIGN_OR_RETURN(const int64_t offset, file->AddText("/fsdp/record", "", record_bytes));
    ranges.record = ByteRange{offset, record_bytes};
  }
  for (const TreeFile::Text& text : tree.texts) {
    FSDP_ASSIGN_OR_RETURN(ranges.texts.emplace_back(), builder.AddText(text));
  }
  ranges.tensors.resize(tree.tensors.size());
  for (const size_t i : LayoutOrder(tree)) {
    if (tree.HasDataset(tree.tensors[i])) {
      FSDP_ASSIGN_OR_RETURN(ranges.tensors[i], builder.AddTensor(tree.tensors[i]));
    }
    if (tree.laid_out) tree.laid_out();
  }
  for (const TreeFile::FlatPart& flat : tree.flats) {
    FSDP_ASSIGN_OR_RETURN(ranges.flats.emplace_back(), builder.AddFlat(flat));
  }
  FSDP_ASSIGN_OR_RETURN(MemoryFile image, file->Close());
  FSDP_ASSIGN_OR_RETURN(ranges.nbytes, image.Size());
  return TreeLayout{std::move(image), std::move(ranges)};
}

}  // namespace fsdp
