// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/tree/tree_layout.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/tensor_name.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

// The name that an escaped link stands for, which its object keeps as an attribute; empty for a name that is not
// escaped.
std::string IfEscaped(const std::string& name) { return EscapeLinkName(name) == name ? "" : name; }

// About how much HDF5 writes beside the payload. Metadata come in blocks, and a block is lost where it is too large and
// scattered where it is too small.
int64_t MetadataBytes(const TreeContents& contents) {
  int64_t nbytes = 2048;
  for (const TreeContents::TensorPart& tensor : contents.tensors) {
    nbytes += 320 + 2 * static_cast<int64_t>(tensor.key.fqn.size() + tensor.key.state.size());
    for (const VirtualPart& part : tensor.parts) {
      nbytes += 120 + static_cast<int64_t>(part.file.size() + part.dataset.size());
    }
  }
  nbytes += 500 * static_cast<int64_t>(contents.flats.size());
  const int64_t blocks = (nbytes + 4095) / 4096;
  return std::clamp(blocks, int64_t{1}, int64_t{256}) * 4096;
}

// Adds groups as they are needed.
class TreeBuilder {
 public:
  explicit TreeBuilder(Hdf5File& file) : file_(file) {}

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

  absl::StatusOr<ByteRange> AddTensor(const TreeContents::TensorPart& tensor) {
    FSDP_RETURN_IF_ERROR(AddGroups(tensor.key));
    const std::string path = DatasetPath(tensor.key);
    const std::string fqn = IfEscaped(tensor.key.state.empty() ? tensor.key.fqn : tensor.key.state);
    if (!tensor.parts.empty()) {
      FSDP_RETURN_IF_ERROR(file_.AddVirtual(path, fqn, tensor.dtype, tensor.shape, tensor.parts));
      return ByteRange{};
    }
    FSDP_ASSIGN_OR_RETURN(const int64_t offset,
                          file_.AddDataset(path, fqn, tensor.dtype, PartDims(tensor.shape, tensor.interval)));
    return ByteRange{offset, tensor.interval.size() * SizeOf(tensor.dtype)};
  }

  absl::StatusOr<ByteRange> AddFlat(const TreeContents::FlatPart& flat) {
    // "/flat/1/optim/exp_avg/float32": the second group is the unit's.
    for (size_t slash = flat.path.find('/', 1); slash != std::string::npos; slash = flat.path.find('/', slash + 1)) {
      const std::string group = flat.path.substr(0, slash);
      const bool is_unit = std::count(group.begin(), group.end(), '/') == 2;
      FSDP_RETURN_IF_ERROR(AddGroup(group, is_unit ? flat.unit : ""));
    }
    FSDP_ASSIGN_OR_RETURN(const int64_t offset, file_.AddDataset(flat.path, "", flat.dtype, {flat.numel}));
    return ByteRange{offset, flat.numel * SizeOf(flat.dtype)};
  }

  absl::StatusOr<ByteRange> AddText(const TreeContents::Text& text) {
    FSDP_RETURN_IF_ERROR(AddGroups(text.key));
    FSDP_ASSIGN_OR_RETURN(const int64_t offset,
                          file_.AddText(DatasetPath(text.key), IfEscaped(text.key.fqn), text.nbytes));
    return ByteRange{offset, std::max<int64_t>(1, text.nbytes)};
  }

 private:
  Hdf5File& file_;
  std::set<std::string> groups_;
};

// A file in memory counts against the process's limit as one on a disk does, and HDF5 does not survive one that cannot
// be closed. So what might outgrow the limit is refused before.
absl::Status CheckSizeLimit(const TreeContents& contents) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  int64_t most = MetadataBytes(contents) + contents.record_bytes + kRecordAlignment;
  const auto add = [&](int64_t nbytes) { most += nbytes + kRecordAlignment; };
  for (const TreeContents::Text& text : contents.texts) add(text.nbytes);
  for (const TreeContents::FlatPart& flat : contents.flats) add(flat.numel * SizeOf(flat.dtype));
  for (const TreeContents::TensorPart& tensor : contents.tensors) {
    if (tensor.parts.empty()) add(tensor.interval.size() * SizeOf(tensor.dtype));
  }
  if (static_cast<rlim_t>(most) <= limit.rlim_cur) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("it may take ", most,
                                                   " bytes, but files of this process are limited to ", limit.rlim_cur,
                                                   "; raise the limit (ulimit -f)"));
}

}  // namespace

absl::StatusOr<TreeLayout> LayOutTree(const TreeContents& contents) {
  FSDP_RETURN_IF_ERROR(CheckSizeLimit(contents));
  const bool shows = std::any_of(contents.tensors.begin(), contents.tensors.end(),
                                 [](const auto& tensor) { return !tensor.parts.empty(); });
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Hdf5File> file,
                        Hdf5File::Create({.virtual_datasets = shows, .metadata_bytes = MetadataBytes(contents)}));
  TreeBuilder builder(*file);
  std::vector<ByteRange> tensors;
  std::vector<ByteRange> flats;
  std::vector<ByteRange> texts;
  std::optional<ByteRange> record;
  if (!contents.warning.empty()) {
    FSDP_RETURN_IF_ERROR(file->SetRootAttribute("warning", contents.warning));
  }
  if (contents.record_bytes != 0) {
    FSDP_RETURN_IF_ERROR(builder.AddGroup("/fsdp", ""));
    FSDP_ASSIGN_OR_RETURN(const int64_t offset, file->AddText("/fsdp/record", "", contents.record_bytes));
    record = ByteRange{offset, contents.record_bytes};
  }
  for (const TreeContents::Text& text : contents.texts) {
    FSDP_ASSIGN_OR_RETURN(const ByteRange range, builder.AddText(text));
    texts.push_back(range);
  }
  for (const TreeContents::TensorPart& tensor : contents.tensors) {
    FSDP_ASSIGN_OR_RETURN(const ByteRange range, builder.AddTensor(tensor));
    tensors.push_back(range);
  }
  for (const TreeContents::FlatPart& flat : contents.flats) {
    FSDP_ASSIGN_OR_RETURN(const ByteRange range, builder.AddFlat(flat));
    flats.push_back(range);
  }
  FSDP_ASSIGN_OR_RETURN(MemoryFile image, file->Close());
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, image.Size());
  return TreeLayout{std::move(image), nbytes, std::move(tensors), std::move(flats), std::move(texts), record};
}

}  // namespace fsdp
