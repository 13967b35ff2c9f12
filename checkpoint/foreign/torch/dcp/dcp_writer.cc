// SPDX-License-Identifier: Apache-2.0
//
// DcpPlan lays out everything first: for each rank a list of archives, one after the other at multiples of 64 bytes,
// each with one chunk or one value; and the metadata with their positions. All offsets are known before any payload is
// read, because an archive's size follows from its pickle and the sizes of its storages (ZipLayout). Then the files are
// written one by one, .metadata last, in a staged directory that a rename makes visible.
//
// One process writes the files of all ranks: a conversion has no job to which the work could be distributed.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_writer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_encoding.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_lists.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/state_path.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {
namespace {

using Path = std::vector<DcpEntry::PathElement>;
using Section = StateKey::Section;

constexpr int64_t kSliceAlignment = 64;

// torch joins the elements of a path by dots, including indices.
std::string NameOf(const Path& path) {
  std::string name;
  for (const DcpEntry::PathElement& element : path) absl::StrAppend(&name, name.empty() ? "" : ".", element.name);
  return name;
}

// Lays out the files of a directory: the contents of each rank's file, and the .metadata that describes them.
class DcpPlan {
 public:
  DcpPlan(const StateDict& contents, int world_size)
      : contents_(contents), keys_(BranchKeysOf(contents)), world_size_(world_size), files_(world_size) {}

  absl::Status Plan() {
    FSDP_RETURN_IF_ERROR(AddValues());  // first in the file, as in torch
    place_ = 0;
    for (const auto& [key, value] : contents_.entries()) {
      const auto* const tensor = std::get_if<ShardedTensor>(&value);
      ++place_;
      if (tensor == nullptr || parts_.count(key) != 0) continue;
      FSDP_RETURN_IF_ERROR(AddTensor(key, *tensor, PathOf(key)));
    }
    ++place_;
    for (const auto& [alias, target] : contents_.aliases) {
      const std::optional<uint32_t> tensor = TensorOf(StateKey::Model(target));
      if (!tensor || contents_.contains(StateKey::Model(alias))) continue;
      FSDP_RETURN_IF_ERROR(AddTensorEntry({{keys_.model, false}, {alias, false}}, *tensor));
    }
    names_ = {};  // 100 bytes for each tensor, which the files need no more
    OrderEntries();
    return OrderLists(metadata_.entries);
  }

  const DcpMetadata& metadata() const { return metadata_; }
  const std::vector<TorchArchivePlan>& archives(int rank) const { return files_[rank]; }
  int64_t payload_bytes() const { return payload_bytes_; }
  int64_t tensors() const { return std::ssize(metadata_.tensors); }

  static std::string FileName(int rank) { return absl::StrCat("__", rank, "_0.distcp"); }

 private:
  // The path of a key in {"model": ..., "optim": {"state": ..., "param_groups": ...}, ...}, the form of torch's
  // get_state_dict, with the keys of BranchKeysOf.
  Path PathOf(const StateKey& key) const {
    switch (key.section) {
      case Section::kModel:
        return {{keys_.model, false}, {key.fqn, false}};
      case Section::kOptimState:
        return PathOfState({key.fqn, key.state});
      case Section::kParamGroups:
        return {{keys_.optim, false}, {"param_groups", false}};
      case Section::kExtra:
        break;
    }
    if (const std::optional<StateName> state = StateOfKey(key)) return PathOfState(*state);
    if (std::optional<std::string> name = NameOfModelValue(key)) {
      return {{keys_.model, false}, {*std::move(name), false}};
    }
    return {{key.fqn, false}};
  }

  Path PathOfState(const StateName& state) const {
    Path path = {{keys_.optim, false}, {"state", false}, {std::string(state.fqn), false}};
    for (StatePathElement& element : SplitStatePath(state.path))
      path.push_back({std::move(element.key), element.is_index});
    return path;
  }

  // Flattened names join a path by dots, so two paths can get one name ("a.b" and "a", "b"): that is an error, because
  // DCP would lose one of them.
  absl::Status AddTensorEntry(const Path& path, uint32_t tensor) {
    return AddEntry(DcpEntry::OfTensor(NameOf(path), path, tensor));
  }

  absl::Status AddEntry(DcpEntry entry) {
    if (!names_.insert(entry.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two values would both be named ", Quote(entry.name()), " in a DCP directory"));
    }
    metadata_.entries.push_back(std::move(entry));
    places_.push_back(place_);
    return absl::OkStatus();
  }

  // Brings the entries into the order of the state, if values are among the tensors of a parameter's state.
  void OrderEntries() {
    const std::vector<uint32_t> places = std::exchange(places_, {});
    const bool has_values = std::any_of(contents_.entries().begin(), contents_.entries().end(), [](const auto& entry) {
      return entry.first.section == Section::kExtra && StateOfKey(entry.first);
    });
    if (!has_values) return;
    std::vector<uint32_t> order(places.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return places[a] < places[b]; });
    std::vector<DcpEntry> entries;
    entries.reserve(order.size());
    for (const uint32_t i : order) entries.push_back(std::move(metadata_.entries[i]));
    metadata_.entries = std::move(entries);
  }

  // Adds an archive at the end of a rank's file. Aligned like payloads within an archive, so that these are also
  // aligned in the file.
  DcpSlice AddArchive(int rank, std::shared_ptr<const TorchArchiveForm> form,
                      std::vector<TorchStorageSource> storages) {
    std::vector<TorchArchivePlan>& archives = files_[rank];
    const int64_t end = archives.empty() ? 0 : archives.back().end();
    const int64_t offset = (end + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
    archives.emplace_back(offset, std::move(form), std::move(storages));
    return {FileName(rank), offset, archives.back().end() - offset};
  }

  // The form of the archive of one tensor of `nbytes` bytes. Most tensors of a model have one of a few shapes.
  std::shared_ptr<const TorchArchiveForm> FormOf(DType dtype, const Shape& shape, int64_t nbytes) {
    constexpr size_t kMostForms = 1024;  // kept at the same time, for models whose tensors all differ
    if (forms_.size() == kMostForms) forms_.clear();
    auto& form = forms_[{dtype, {shape.dims().begin(), shape.dims().end()}}];
    if (form == nullptr) {
      PickleWriter pickle;
      EncodeTorchTensor(pickle, "0", dtype, shape);
      form = std::make_shared<const TorchArchiveForm>(std::move(pickle).Finish(), std::vector<int64_t>{nbytes});
    }
    return form;
  }

  // Adds a chunk of rows for each rank that gets rows. A scalar, or a tensor without elements, is one chunk on rank 0.
  absl::Status AddTensor(const StateKey& key, const ShardedTensor& tensor, const Path& path) {
    const uint32_t index = BeginTensor(tensor.dtype, tensor.shape);
    for (int rank = 0; rank < world_size_; ++rank) {
      const Interval part = Dim0Chunk(tensor.shape, world_size_, rank);
      if (part.empty() && !(tensor.shape.numel() == 0 && rank == 0)) continue;
      DcpChunk chunk;
      chunk.box.start.assign(tensor.shape.rank(), 0);
      chunk.box.count.assign(tensor.shape.dims().begin(), tensor.shape.dims().end());
      if (tensor.shape.rank() > 0 && tensor.shape.numel() > 0) {
        chunk.box.start[0] = part.begin / tensor.shape.row_numel();
        chunk.box.count[0] = part.size() / tensor.shape.row_numel();
      }
      FSDP_ASSIGN_OR_RETURN(const Shape shape, Shape::Create(chunk.box.count));
      chunk.slice = AddArchive(rank, FormOf(tensor.dtype, shape, part.size() * SizeOf(tensor.dtype)),
                               {{.elements = &key, .interval = part, .element_size = SizeOf(tensor.dtype)}});
      AddChunk(chunk);
    }
    payload_bytes_ += tensor.shape.numel() * SizeOf(tensor.dtype);
    SetTensorOf(key, index);
    return AddTensorEntry(path, index);
  }

  // The tensor that AddTensor has made of the value `key` of the state; nullopt if it has not.
  std::optional<uint32_t> TensorOf(const StateKey& key) const {
    const std::optional<size_t> entry = contents_.IndexOf(key);
    if (!entry || tensor_of_entry_[*entry] == 0) return std::nullopt;
    return tensor_of_entry_[*entry] - 1;
  }

  void SetTensorOf(const StateKey& key, uint32_t index) { tensor_of_entry_[*contents_.IndexOf(key)] = index + 1; }

  // The number of a new tensor, to which AddChunk adds until the next BeginTensor.
  uint32_t BeginTensor(DType dtype, const Shape& shape) {
    const auto chunks = static_cast<uint32_t>(metadata_.chunks.size());
    metadata_.tensors.push_back({dtype, shape, chunks, chunks});
    return static_cast<uint32_t>(metadata_.tensors.size() - 1);
  }

  void AddChunk(const DcpChunk& chunk) {
    metadata_.chunks.Add(chunk);
    ++metadata_.tensors.back().end_chunk;
  }

  absl::Status AddValues() {
    FSDP_ASSIGN_OR_RETURN(parts_, PartsOfExtras(contents_));
    for (const auto& [key, value] : contents_.entries()) {
      const auto* text = std::get_if<std::string>(&value);
      ++place_;
      if (text == nullptr || parts_.count(key) != 0) continue;
      if (IsNameOfBranch(key, keys_, contents_)) {
        return absl::InvalidArgumentError(absl::StrCat("extra value ", Quote(key.fqn), " would take the place of the ",
                                                       key.fqn,
                                                       " in a DCP directory; ConvertOptions::model_only "
                                                       "leaves it out, and hdf5 holds both"));
      }
      if (key.section == Section::kParamGroups) {
        FSDP_ASSIGN_OR_RETURN(const PythonJson groups, TorchParamGroups(*text));
        FSDP_RETURN_IF_ERROR(AddValue(PathOf(key), groups));
      } else {
        FSDP_RETURN_IF_ERROR(AddValue(PathOf(key), PythonOfText(*text)));
      }
    }
    const bool has_state = std::any_of(contents_.entries().begin(), contents_.entries().end(),
                                       [](const auto& entry) { return entry.first.section == Section::kOptimState; });
    // Groups tell a reader that "optim" is an optimizer. The state of JAX has no groups.
    if (!has_state || contents_.contains(StateKey::ParamGroups())) return absl::OkStatus();
    return AddValue(PathOf(StateKey::ParamGroups()), PythonJson::array());
  }

  // True for a literal tensor and a part of an extra value, and for a container with one at any depth.
  static bool HoldsTensor(const PythonJson& json) {
    return TensorOfJson(json) || NameOfReference(json) ||
           (json.is_structured() && std::any_of(json.begin(), json.end(), HoldsTensor));
  }

  // A part of an extra value at `path`, in the order of the value. PartsOfExtras has found it, and that a text among
  // them has no parts.
  absl::Status AddPart(const Path& path, const std::string& name) {
    const auto& [key, value] = contents_.entries()[*contents_.IndexOf(StateKey::Extra(name))];
    if (const auto* const text = std::get_if<std::string>(&value)) return AddValue(path, PythonOfText(*text));
    if (const std::optional<uint32_t> tensor = TensorOf(key)) return AddTensorEntry(path, *tensor);
    return AddTensor(key, std::get<ShardedTensor>(value), path);
  }

  // The parts into which torch's flatten_state_dict divides a value: a dict into its members, a list with a dict or
  // tensor in it into its elements. Empty for any other value, which is pickled: also for a tuple with tensors. Dicts
  // of other types are pickled too, so that they keep their type, unless they hold tensors; as in torch, their keys
  // then become strings.
  static std::vector<std::pair<DcpEntry::PathElement, PythonJson>> MembersOfValue(const PythonJson& json) {
    std::vector<std::pair<DcpEntry::PathElement, PythonJson>> members;
    const auto is_divided = [](const PythonJson& item) {
      return HoldsTensor(item) || (item.is_object() && !item.contains(kPythonTag));
    };
    if (json.is_array() && std::any_of(json.begin(), json.end(), is_divided)) {
      for (const PythonJson& item : json) members.push_back({{absl::StrCat(members.size()), true}, item});
    } else if (json.is_object() && !json.contains(kPythonTag)) {
      for (const auto& [name, value] : json.items()) members.push_back({{name, false}, value});
    } else if (IsDict(json) && HoldsTensor(json)) {
      for (const PythonJson& pair : json["items"]) {
        const std::string name = pair[0].is_string() ? pair[0].get<std::string>() : pair[0].dump();
        members.push_back({{name, false}, pair[1]});
      }
    }
    return members;
  }

  // A dict as pairs.
  static bool IsDict(const PythonJson& json) {
    const auto tag = json.is_object() ? json.find(kPythonTag) : json.end();
    const auto items = json.is_object() ? json.find("items") : json.end();
    return json.is_object() && tag != json.end() && items != json.end() && items->is_array() &&
           (*tag == "dict" || *tag == "OrderedDict" || *tag == "Counter") &&
           std::all_of(items->begin(), items->end(),
                       [](const PythonJson& pair) { return pair.is_array() && pair.size() == 2; });
  }

  // DCP loads by the names of the parts.
  absl::Status AddValue(const Path& path, const PythonJson& json) {
    if (const std::optional<LiteralTensor> tensor = TensorOfJson(json)) return AddLiteral(path, *tensor);
    if (const std::optional<std::string> part = NameOfReference(json)) return AddPart(path, *part);
    const auto members = MembersOfValue(json);
    if (members.empty()) return AddPickled(path, json);
    for (const auto& [element, value] : members) {
      Path longer = path;
      longer.push_back(element);
      FSDP_RETURN_IF_ERROR(AddValue(longer, value));
    }
    return absl::OkStatus();
  }

  // Adds a value, with any tensors in it, as one archive.
  absl::Status AddPickled(const Path& path, const PythonJson& json) {
    PickleWriter pickle;
    std::vector<TorchStorageSource> storages;
    pickle.write_tensor = [&](const LiteralTensor& tensor) {
      EncodeTorchTensor(pickle, absl::StrCat(storages.size()), tensor.dtype, tensor.shape);
      storages.push_back(
          {.elements = tensor.bytes, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
    };
    pickle.write_reference = [&](const std::string& name) {
      const auto& [key, value] = contents_.entries()[*contents_.IndexOf(StateKey::Extra(name))];
      if (const auto* text = std::get_if<std::string>(&value)) return pickle.Python(PythonOfText(*text));
      const auto& tensor = std::get<ShardedTensor>(value);
      EncodeTorchTensor(pickle, absl::StrCat(storages.size()), tensor.dtype, tensor.shape);
      storages.push_back(
          {.elements = &key, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
      payload_bytes_ += tensor.shape.numel() * SizeOf(tensor.dtype);
    };
    pickle.Python(json);
    std::vector<int64_t> sizes;
    for (const TorchStorageSource& storage : storages) sizes.push_back(storage.interval.size() * storage.element_size);
    auto form = std::make_shared<const TorchArchiveForm>(std::move(pickle).Finish(), sizes);
    const DcpSlice slice = AddArchive(0, std::move(form), std::move(storages));
    return AddEntry(DcpEntry::OfValue(NameOf(path), path, metadata_.chunks.AddSlice(slice)));
  }

  // Adds a tensor among values, whole on rank 0.
  absl::Status AddLiteral(const Path& path, const LiteralTensor& tensor) {
    DcpChunk chunk;
    chunk.box.start.assign(tensor.shape.rank(), 0);
    chunk.box.count.assign(tensor.shape.dims().begin(), tensor.shape.dims().end());
    const Interval whole = {0, tensor.shape.numel()};
    chunk.slice = AddArchive(0, FormOf(tensor.dtype, tensor.shape, whole.size() * SizeOf(tensor.dtype)),
                             {{.elements = tensor.bytes, .interval = whole, .element_size = SizeOf(tensor.dtype)}});
    const uint32_t index = BeginTensor(tensor.dtype, tensor.shape);
    AddChunk(chunk);
    return AddTensorEntry(path, index);
  }

  const StateDict& contents_;
  const BranchKeys keys_;
  const int world_size_;
  DcpMetadata metadata_;
  std::vector<std::vector<TorchArchivePlan>> files_;  // by rank
  // By entry of contents_: an index into metadata_.tensors, plus one; 0: no tensor so far.
  std::vector<uint32_t> tensor_of_entry_ = std::vector<uint32_t>(contents_.entries().size());
  std::set<StateKey> parts_;  // of extra values, which are only inside them
  absl::flat_hash_set<std::string> names_;
  uint32_t place_ = 0;            // of the entry of contents_ that is added
  std::vector<uint32_t> places_;  // by entry of metadata_
  std::map<std::pair<DType, std::vector<int64_t>>, std::shared_ptr<const TorchArchiveForm>> forms_;
  int64_t payload_bytes_ = 0;
};

// Syncs .metadata before the commit, like the other files.
absl::Status WriteMetadata(FileSystem& files, const std::string& path, const std::string& bytes) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(path));
  FSDP_RETURN_IF_ERROR(
      file->Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size())));
  return file->Sync();
}

}  // namespace

absl::Status WriteDcpDirectory(const std::string& path, const StateDict& contents, int world_size,
                               const PayloadReader& read, const TorchWriteOptions& options) {
  DcpPlan plan(contents, world_size);
  FSDP_RETURN_IF_ERROR(plan.Plan());
  const auto count_names = [&] {
    if (options.count_names) options.count_names(plan.tensors());
  };
  count_names();
  FileSystem& files = *options.file_system;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateDirectory(files, path, {.overwrite = options.overwrite}));
  int64_t done_before = 0;  // payload bytes in the files that are complete
  int64_t done = 0;
  TorchWriteOptions file_options = options;
  file_options.progress = [&](int64_t bytes, int64_t) {
    done = done_before + bytes;
    if (options.progress) options.progress(done, plan.payload_bytes());
  };
  for (int rank = 0; rank < world_size; ++rank) {
    if (plan.archives(rank).empty()) continue;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          files.Create(JoinPath(staged->path(), DcpPlan::FileName(rank))));
    FSDP_RETURN_IF_ERROR(WriteTorchArchives(*file, plan.archives(rank), read, file_options));
    done_before = done;
  }
  FSDP_RETURN_IF_ERROR(
      WriteMetadata(files, JoinPath(staged->path(), kDcpMetadataName), EncodeDcpMetadata(plan.metadata())));
  count_names();
  return staged->Commit();
}

}  // namespace fsdp
