// SPDX-License-Identifier: Apache-2.0
//
// .metadata is the pickle of a dataclass with three dicts that belong together by name:
//
//   state_dict_metadata   name -> dtype, size and chunks of a tensor, or "a value"
//   planner_data          name -> path in the nested state dict, as a tuple; its order is the order of the state dict
//   storage_data          (name, offsets of the chunk) -> file, offset, length
//
// Objects arrive as kCalls with a state (pickle.h); attributes are looked up by name, so that fields which newer
// versions of torch add do not matter. DCP's older versions have no chunk offsets for values and no planner_data.
#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/torch/state/torch_tensor.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

absl::Status Broken(PickleValue value, const std::string& what) {
  return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

// True for an object of a class of that name, in whichever of its modules this version of torch has it.
bool IsObject(PickleValue value, std::string_view class_name) {
  return value.is(Kind::kCall) && value.callee().global_name() == class_name;
}

// The attribute `name` of an object whose state is a dict; nullopt if there is none.
std::optional<PickleValue> FindAttribute(PickleValue object, std::string_view name) {
  if (!object.has_state() || !object.state().is(Kind::kDict)) return std::nullopt;
  const PickleValue state = object.state();
  for (int64_t i = 0; i < state.size(); ++i) {
    const auto [key, value] = state.member(i);
    if (key.is_string(name)) return value;
  }
  return std::nullopt;
}

absl::StatusOr<PickleValue> Attribute(PickleValue object, std::string_view name) {
  if (const auto value = FindAttribute(object, name)) return *value;
  return Broken(object, absl::StrCat("an object without ", Quote(name)));
}

absl::Status CheckText(PickleValue value) {
  if (value.is(Kind::kString)) return absl::OkStatus();
  return Broken(value, absl::StrCat(std::string(PickleKindName(value.kind())), " for a name"));
}

absl::StatusOr<std::string> Text(PickleValue value) {
  FSDP_RETURN_IF_ERROR(CheckText(value));
  return std::string(value.text());
}

absl::StatusOr<int64_t> Position(PickleValue value) {
  if (value.is(Kind::kInt) && value.integer() >= 0) return value.integer();
  return Broken(value, "a place in a file that is no integer from 0");
}

// A key of storage_data: name and offsets of a chunk, or the name of a value.
struct StorageKey {
  std::string_view fqn;
  bool is_chunk = false;
  std::vector<int64_t> offsets = {};

  bool operator==(const StorageKey& other) const {
    return fqn == other.fqn && is_chunk == other.is_chunk && offsets == other.offsets;
  }

  template <typename H>
  friend H AbslHashValue(H hash, const StorageKey& key) {
    return H::combine(std::move(hash), key.fqn, key.is_chunk, key.offsets);
  }
};

// A MetadataIndex.
absl::StatusOr<StorageKey> ReadKey(PickleValue index) {
  StorageKey key;
  FSDP_ASSIGN_OR_RETURN(const PickleValue fqn, Attribute(index, "fqn"));
  FSDP_RETURN_IF_ERROR(CheckText(fqn));
  key.fqn = fqn.text();
  const auto offset = FindAttribute(index, "offset");
  key.is_chunk = offset && !offset->is(Kind::kNone);
  if (key.is_chunk) {
    FSDP_ASSIGN_OR_RETURN(key.offsets, ReadSizes(*offset));
  }
  return key;
}

// The members of storage_data by key. It has the numbers of the members and reads their keys in the pickle, since there
// is a member for each chunk, and a copy of its key would take more memory than anything else that is made of it.
class StorageIndex {
 public:
  // OK if every key can be read. Of equal keys the last counts, as in Python.
  absl::Status Fill(PickleValue storage) {
    storage_ = storage;
    numbers_.reserve(storage.size());
    for (int64_t i = 0; i < storage.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(const StorageKey key, ReadKey(storage.member(i).first));
      if (const auto at = numbers_.find(key); at != numbers_.end()) numbers_.erase(at);
      numbers_.insert(static_cast<uint32_t>(i));
    }
    return absl::OkStatus();
  }

  // The _StorageInfo of `key`; nullopt where there is none.
  std::optional<PickleValue> Find(const StorageKey& key) const {
    const auto at = numbers_.find(key);
    if (at == numbers_.end()) return std::nullopt;
    return storage_->member(*at).second;
  }

 private:
  struct Hash {
    using is_transparent = void;
    const StorageIndex* index;
    size_t operator()(const StorageKey& key) const { return absl::Hash<StorageKey>()(key); }
    size_t operator()(uint32_t number) const { return (*this)(index->KeyOf(number)); }
  };
  struct Equal {
    using is_transparent = void;
    const StorageIndex* index;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t number, const StorageKey& key) const { return index->KeyOf(number) == key; }
    bool operator()(const StorageKey& key, uint32_t number) const { return index->KeyOf(number) == key; }
  };

  // Of a member that Fill has read before.
  StorageKey KeyOf(uint32_t number) const { return *ReadKey(storage_->member(number).first); }

  std::optional<PickleValue> storage_;
  absl::flat_hash_set<uint32_t, Hash, Equal> numbers_{0, Hash{this}, Equal{this}};
};

// Bytes of what this file makes of an entry, an element of a path or a chunk, names not counted, and of what is made of
// that later.
constexpr int64_t kItemBytes = 160;
constexpr int64_t kLaterItemBytes = 224;
// And of the number of a place in StorageIndex, where a table is more than a quarter full.
constexpr int64_t kPlaceBytes = 20;

class MetadataReader {
 public:
  explicit MetadataReader(const Pickle& pickle) : budget_(pickle, DcpMemoryLimit(pickle.size())) {}

  absl::StatusOr<DcpMetadata> Read(PickleValue root) {
    if (!IsObject(root, "Metadata")) return Broken(root, "it is no Metadata of torch.distributed.checkpoint");
    FSDP_RETURN_IF_ERROR(ReadStorage(root));
    FSDP_RETURN_IF_ERROR(ReadPaths(root));
    FSDP_ASSIGN_OR_RETURN(const PickleValue entries, Attribute(root, "state_dict_metadata"));
    if (!entries.is(Kind::kDict)) return Broken(entries, "state_dict_metadata is no dict");
    for (int64_t i = 0; i < entries.size(); ++i) {
      const auto [key, value] = entries.member(i);
      FSDP_ASSIGN_OR_RETURN(const std::string name, Text(key));
      FSDP_RETURN_IF_ERROR(AddEntry(name, value));
    }
    SortByPath();
    return std::move(metadata_);
  }

 private:
  // Fills storage_, and reads every place once: one that no tensor has is an error, too.
  absl::Status ReadStorage(PickleValue root) {
    FSDP_ASSIGN_OR_RETURN(const PickleValue storage, Attribute(root, "storage_data"));
    if (!storage.is(Kind::kDict)) return Broken(storage, "storage_data is no dict");
    for (int64_t i = 0; i < storage.size(); ++i) {
      const auto [index, info] = storage.member(i);
      FSDP_RETURN_IF_ERROR(budget_.Take(index, kPlaceBytes, 0));
      FSDP_ASSIGN_OR_RETURN(const PickleValue fqn, Attribute(index, "fqn"));
      FSDP_RETURN_IF_ERROR(CheckText(fqn));
      FSDP_RETURN_IF_ERROR(ReadSlice(fqn.text(), info).status());
    }
    return storage_.Fill(storage);
  }

  // A _StorageInfo. Its path is opened below the directory, so it must be a plain name: "../x" is damage or an attack.
  static absl::StatusOr<DcpSlice> ReadSlice(std::string_view name, PickleValue info) {
    const auto transforms = FindAttribute(info, "transform_descriptors");
    if (transforms && !(transforms->is(Kind::kNone) || (transforms->is_sequence() && transforms->size() == 0))) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quote(std::string(name)),
                       " was transformed when it was saved (compressed, for instance), and that is not read"));
    }
    DcpSlice slice;
    FSDP_ASSIGN_OR_RETURN(const PickleValue path, Attribute(info, "relative_path"));
    FSDP_ASSIGN_OR_RETURN(slice.file, Text(path));
    if (!CheckFileName(slice.file).ok()) {
      return absl::DataLossError(absl::StrCat(Quote(std::string(name)), " is placed in ", Quote(slice.file),
                                              ", expected a file of the directory"));
    }
    FSDP_ASSIGN_OR_RETURN(const PickleValue offset, Attribute(info, "offset"));
    FSDP_ASSIGN_OR_RETURN(slice.offset, Position(offset));
    FSDP_ASSIGN_OR_RETURN(const PickleValue length, Attribute(info, "length"));
    FSDP_ASSIGN_OR_RETURN(slice.nbytes, Position(length));
    if (slice.nbytes <= std::numeric_limits<int64_t>::max() - slice.offset) return slice;
    return absl::DataLossError(absl::StrCat(Quote(std::string(name)), " is placed in ", Quote(slice.file), ", ",
                                            slice.nbytes, " bytes from byte ", slice.offset,
                                            " on: no file reaches that far"));
  }

  // planner_data may be absent; then names are their own paths.
  absl::Status ReadPaths(PickleValue root) {
    const auto paths = FindAttribute(root, "planner_data");
    if (!paths || !paths->is(Kind::kDict)) return absl::OkStatus();
    for (int64_t i = 0; i < paths->size(); ++i) {
      const auto [key, value] = paths->member(i);
      FSDP_ASSIGN_OR_RETURN(const std::string name, Text(key));
      if (!value.is_sequence()) return Broken(value, "a path that is no tuple");
      order_.try_emplace(name, i);
      FSDP_RETURN_IF_ERROR(Take(key, static_cast<int64_t>(name.size())));
      std::vector<DcpEntry::PathElement>& path = paths_[name];
      for (int64_t j = 0; j < value.size(); ++j) {
        const PickleValue element = value.at(j);
        const bool is_text = element.is(Kind::kString);
        FSDP_RETURN_IF_ERROR(Take(element, is_text ? static_cast<int64_t>(element.text().size()) : 0));
        if (element.is(Kind::kInt)) {
          path.push_back({absl::StrCat(element.integer()), true});
        } else {
          FSDP_ASSIGN_OR_RETURN(const std::string text, Text(element));
          path.push_back({text, false});
        }
      }
    }
    return absl::OkStatus();
  }

  // Adds the tensor or value that state_dict_metadata has under `name`.
  absl::Status AddEntry(const std::string& name, PickleValue value) {
    FSDP_RETURN_IF_ERROR(Take(value, static_cast<int64_t>(name.size())));
    DcpEntry entry;
    entry.name = name;
    const auto path = paths_.find(name);
    entry.path =
        path == paths_.end() || path->second.empty() ? std::vector<DcpEntry::PathElement>{{name, false}} : path->second;
    if (IsObject(value, "BytesStorageMetadata")) {
      FSDP_ASSIGN_OR_RETURN(entry.content, FindSlice(name, std::nullopt));
    } else if (IsObject(value, "TensorStorageMetadata")) {
      FSDP_ASSIGN_OR_RETURN(DcpTensor tensor, ReadTensor(name, value));
      entry.content = static_cast<int>(metadata_.tensors.size());
      metadata_.tensors.push_back(std::move(tensor));
    } else {
      return Broken(value, absl::StrCat(Quote(name), " is neither a tensor nor a value"));
    }
    metadata_.entries.push_back(std::move(entry));
    return absl::OkStatus();
  }

  // The place of a chunk, or of a value if there are no offsets. A chunk without a place is damage.
  absl::StatusOr<DcpSlice> FindSlice(const std::string& name,
                                     const std::optional<std::vector<int64_t>>& offsets) const {
    if (const auto info = storage_.Find({name, offsets.has_value(), offsets.value_or(std::vector<int64_t>())})) {
      return ReadSlice(name, *info);
    }
    const std::string which = offsets ? absl::StrCat(", chunk at [", absl::StrJoin(*offsets, ", "), "],") : "";
    return absl::DataLossError(absl::StrCat(Quote(name), which, " is missing in storage_data"));
  }

  // TensorProperties has a __getstate__ that gives a tuple with the dtype first; older versions have a dict of fields.
  static absl::StatusOr<DType> ReadDType(const std::string& name, PickleValue properties) {
    const auto state = properties.has_state() ? std::make_optional(properties.state()) : std::nullopt;
    std::optional<PickleValue> dtype;
    if (state && state->is(Kind::kTuple) && state->size() > 0) dtype = state->at(0);
    if (state && state->is(Kind::kDict)) dtype = FindAttribute(properties, "dtype");
    if (!dtype || !dtype->is(Kind::kGlobal)) return Broken(properties, absl::StrCat(Quote(name), " has no dtype"));
    const absl::StatusOr<DType> read = DTypeOfGlobal(dtype->name());
    if (read.ok()) return read;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": ", std::string(read.status().message())));
  }

  // A TensorStorageMetadata: dtype, size and chunks. Chunks of ranks that hold nothing are left out.
  absl::StatusOr<DcpTensor> ReadTensor(const std::string& name, PickleValue value) {
    DcpTensor tensor;
    FSDP_ASSIGN_OR_RETURN(const PickleValue properties, Attribute(value, "properties"));
    FSDP_ASSIGN_OR_RETURN(tensor.dtype, ReadDType(name, properties));
    FSDP_ASSIGN_OR_RETURN(const PickleValue size, Attribute(value, "size"));
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReadSizes(size));
    const absl::StatusOr<Shape> shape = Shape::Create(sizes);
    if (!shape.ok()) return Broken(size, std::string(shape.status().message()));
    tensor.shape = *shape;
    FSDP_ASSIGN_OR_RETURN(const PickleValue chunks, Attribute(value, "chunks"));
    if (!chunks.is_sequence()) return Broken(chunks, "chunks that are no list");
    for (int64_t i = 0; i < chunks.size(); ++i) {
      FSDP_RETURN_IF_ERROR(Take(chunks.at(i), 0));
      DcpChunk chunk;
      FSDP_ASSIGN_OR_RETURN(const PickleValue offsets, Attribute(chunks.at(i), "offsets"));
      FSDP_ASSIGN_OR_RETURN(chunk.box.start, ReadSizes(offsets));
      FSDP_ASSIGN_OR_RETURN(const PickleValue counts, Attribute(chunks.at(i), "sizes"));
      FSDP_ASSIGN_OR_RETURN(chunk.box.count, ReadSizes(counts));
      if (std::count(chunk.box.count.begin(), chunk.box.count.end(), 0) != 0) continue;  // a rank without rows
      FSDP_ASSIGN_OR_RETURN(chunk.slice, FindSlice(name, chunk.box.start));
      tensor.chunks.push_back(std::move(chunk));
    }
    const absl::Status covered = CheckChunkCover(tensor.shape, tensor.chunks);
    if (covered.ok()) return tensor;
    return Annotate(covered, absl::StrCat("tensor ", Quote(name)));
  }

  // Takes the memory of one item with a name of `name_bytes`: many may be one value of the pickle.
  absl::Status Take(PickleValue value, int64_t name_bytes) {
    return budget_.Take(value, kItemBytes + name_bytes, kLaterItemBytes + 2 * name_bytes);
  }

  // Into the order of planner_data, which is that of the state dict: optimizers' ids depend on the model's order.
  // state_dict_metadata has the order in which the ranks' plans were merged.
  void SortByPath() {
    const auto order = [this](const DcpEntry& entry) {
      const auto at = order_.find(entry.name);
      return at == order_.end() ? std::numeric_limits<int64_t>::max() : at->second;
    };
    std::stable_sort(metadata_.entries.begin(), metadata_.entries.end(),
                     [&](const DcpEntry& a, const DcpEntry& b) { return order(a) < order(b); });
  }

  PickleBudget budget_;
  DcpMetadata metadata_;
  absl::flat_hash_map<std::string, int64_t> order_;  // of names in planner_data
  StorageIndex storage_;
  absl::flat_hash_map<std::string, std::vector<DcpEntry::PathElement>> paths_;
};

// Chunks [begin, end), sorted by start and count, agree in all dimensions before `d` and must cover the others: in
// dimension d they form groups of one range, the ranges follow each other without a gap, and each group covers the
// dimensions after d. Linear in chunks for each dimension, where testing pairs of boxes would be quadratic.
absl::Status CheckDimension(const Shape& shape, int d, std::vector<DcpChunk>::const_iterator begin,
                            std::vector<DcpChunk>::const_iterator end) {
  if (d == shape.rank()) {
    return end - begin == 1 ? absl::OkStatus() : absl::DataLossError("two chunks have the same box");
  }
  int64_t covered = 0;
  while (begin != end) {
    const int64_t start = begin->box.start[d];
    const int64_t count = begin->box.count[d];
    if (start != covered) {
      return absl::DataLossError(absl::StrCat("indices [", std::min(start, covered), ", ", std::max(start, covered),
                                              ") of dimension ", d,
                                              start > covered ? " are missing" : " are held twice"));
    }
    auto last = begin;
    while (last != end && last->box.start[d] == start && last->box.count[d] == count) ++last;
    FSDP_RETURN_IF_ERROR(CheckDimension(shape, d + 1, begin, last));
    covered = start + count;
    begin = last;
  }
  if (covered == shape.dim(d)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("indices [", covered, ", ", shape.dim(d), ") of dimension ", d, " are missing"));
}

}  // namespace

absl::Status CheckChunkCover(const Shape& shape, std::vector<DcpChunk>& chunks) {
  for (const DcpChunk& chunk : chunks) {
    bool fits =
        static_cast<int>(chunk.box.start.size()) == shape.rank() && chunk.box.count.size() == chunk.box.start.size();
    for (int d = 0; fits && d < shape.rank(); ++d) {
      fits = chunk.box.start[d] <= shape.dim(d) && chunk.box.count[d] <= shape.dim(d) - chunk.box.start[d];
    }
    if (fits) continue;
    return absl::DataLossError(absl::StrCat("chunk [", absl::StrJoin(chunk.box.start, ", "), "] + [",
                                            absl::StrJoin(chunk.box.count, ", "), "] reaches beyond ",
                                            shape.ToString()));
  }
  if (shape.numel() == 0) return absl::OkStatus();
  std::sort(chunks.begin(), chunks.end(), [](const DcpChunk& a, const DcpChunk& b) {
    return std::tie(a.box.start, a.box.count) < std::tie(b.box.start, b.box.count);
  });
  // Replicas (HSDP saved without deduplication) have equal boxes: one of them is enough.
  const auto same = [](const DcpChunk& a, const DcpChunk& b) {
    return a.box.start == b.box.start && a.box.count == b.box.count;
  };
  chunks.erase(std::unique(chunks.begin(), chunks.end(), same), chunks.end());
  return CheckDimension(shape, 0, chunks.begin(), chunks.end());
}

absl::StatusOr<DcpMetadata> ParseDcpMetadata(std::string_view bytes) {
  const auto nbytes = static_cast<int64_t>(bytes.size());
  PickleOptions options = {.is_allowed = IsDcpGlobal};
  options.limits.max_memory = DcpMemoryLimit(nbytes) - nbytes;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Pickle> pickle, Pickle::Parse(bytes, options));
  return MetadataReader(*pickle).Read(pickle->root());
}

}  // namespace fsdp
