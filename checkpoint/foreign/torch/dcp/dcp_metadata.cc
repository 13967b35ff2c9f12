// SPDX-License-Identifier: Apache-2.0
//
// .metadata is the pickle of a dataclass with three dicts that are joined by name:
//
//   state_dict_metadata   name -> dtype, size and chunks of a tensor, or "a value"
//   planner_data          name -> path in the nested state dict, as a tuple; its order is the order of the state dict
//   storage_data          (name, offsets of the chunk) -> file, offset, length
//
// Their members have already become objects (dcp_objects.h) when this reader runs. DCP's older versions have no chunk
// offsets for values and no planner_data.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"

#include <algorithm>
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
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_objects.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"

namespace fsdp {
namespace {

using Key = DcpObjects::Key;

absl::Status Broken(PickleValue value, const std::string& what) { return BrokenObject(value, what); }

absl::Status CheckText(PickleValue value) {
  if (value.is(PickleKind::kString)) return absl::OkStatus();
  return Broken(value, absl::StrCat(std::string(PickleKindName(value.kind())), " for a name"));
}

// The members of a dict with names, by name. It stores the numbers of the members and reads their names in the pickle,
// because a copy of each name would take more memory than anything else here.
class NameIndex {
 public:
  // kDataLoss for a key that is not a name, or that occurs twice.
  absl::Status Fill(PickleValue dict) {
    dict_ = dict;
    numbers_.reserve(dict.size());
    for (int64_t i = 0; i < dict.size(); ++i) {
      const PickleValue key = dict.member(i).first;
      FSDP_RETURN_IF_ERROR(CheckText(key));
      if (numbers_.insert(static_cast<uint32_t>(i)).second) continue;
      return Broken(key, absl::StrCat("a dict has the key ", Quote(std::string(key.text())), " twice"));
    }
    return absl::OkStatus();
  }

  std::optional<PickleValue> Find(std::string_view name) const {
    const auto at = numbers_.find(name);
    return at == numbers_.end() ? std::nullopt : std::make_optional(dict_->member(*at).second);
  }

 private:
  struct Hash {
    using is_transparent = void;
    const NameIndex* index;
    size_t operator()(std::string_view name) const { return absl::Hash<std::string_view>()(name); }
    size_t operator()(uint32_t number) const { return (*this)(index->NameOf(number)); }
  };
  struct Equal {
    using is_transparent = void;
    const NameIndex* index;
    bool operator()(uint32_t a, uint32_t b) const { return index->NameOf(a) == index->NameOf(b); }
    bool operator()(uint32_t number, std::string_view name) const { return index->NameOf(number) == name; }
    bool operator()(std::string_view name, uint32_t number) const { return index->NameOf(number) == name; }
  };

  std::string_view NameOf(uint32_t number) const { return dict_->member(number).first.text(); }

  std::optional<PickleValue> dict_;
  absl::flat_hash_set<uint32_t, Hash, Equal> numbers_{0, Hash{this}, Equal{this}};
};

// The slices of storage_data by key.
class StorageIndex {
 public:
  explicit StorageIndex(DcpObjects& objects) : objects_(objects) {}

  void Reserve(int64_t count) {
    rows_.reserve(count);
    numbers_.reserve(count);
  }

  // The last of equal keys counts, as in Python.
  void Add(const Key& key, uint32_t slice) {
    rows_.push_back({key, slice});
    const auto number = static_cast<uint32_t>(rows_.size() - 1);
    if (const auto at = numbers_.find(number); at != numbers_.end()) {
      rows_[*at].slice = slice;
      rows_.pop_back();
    } else {
      numbers_.insert(number);
    }
  }

  // `offsets`: the number in DcpSizes of a chunk's offsets, or Key::kNoOffsets. nullopt if there is no such key.
  std::optional<uint32_t> Find(std::string_view name, uint32_t offsets) const {
    const auto at = numbers_.find(Wanted{name, offsets});
    return at == numbers_.end() ? std::nullopt : std::make_optional(rows_[*at].slice);
  }

 private:
  struct Row {
    Key key;
    uint32_t slice = 0;
  };
  struct Wanted {
    std::string_view name;
    uint32_t offsets;

    bool operator==(const Wanted& other) const { return offsets == other.offsets && name == other.name; }
  };
  struct Hash {
    using is_transparent = void;
    const StorageIndex* index;
    size_t operator()(const Wanted& key) const { return absl::HashOf(key.name, key.offsets); }
    size_t operator()(uint32_t number) const { return (*this)(index->KeyOf(number)); }
  };
  struct Equal {
    using is_transparent = void;
    const StorageIndex* index;
    bool operator()(uint32_t a, uint32_t b) const { return index->KeyOf(a) == index->KeyOf(b); }
    bool operator()(uint32_t number, const Wanted& key) const { return index->KeyOf(number) == key; }
    bool operator()(const Wanted& key, uint32_t number) const { return index->KeyOf(number) == key; }
  };

  Wanted KeyOf(uint32_t number) const { return {objects_.Name(rows_[number].key), rows_[number].key.offsets}; }

  DcpObjects& objects_;
  std::vector<Row> rows_;
  absl::flat_hash_set<uint32_t, Hash, Equal> numbers_{0, Hash{this}, Equal{this}};
};

// Bytes of a member of storage_data: a row and its number, in a table that may be half full. Bytes of a member of
// state_dict_metadata or planner_data: its number.
constexpr int64_t kStorageBytes = 24;
constexpr int64_t kNumberBytes = 10;
// Bytes of an entry and its tensor, and of all their later results, up to the report of a command, without names.
constexpr int64_t kEntryBytes = 192;
constexpr int64_t kLaterEntryBytes = 480;
// Bytes of a chunk, and later with its archive's position and checksum.
constexpr int64_t kChunkBytes = 13;
constexpr int64_t kLaterChunkBytes = 90;

class MetadataReader {
 public:
  MetadataReader(const Pickle& pickle, DcpObjects& objects) : budget_(pickle), objects_(objects), storage_(objects) {}

  absl::StatusOr<DcpMetadata> Read(PickleValue root) {
    if (!root.is(PickleKind::kCall) || root.callee().global_name() != "Metadata" || !root.has_state()) {
      return Broken(root, "it is not a Metadata of torch.distributed.checkpoint");
    }
    FSDP_RETURN_IF_ERROR(budget_.Take(root, objects_.memory(), 0));
    FSDP_RETURN_IF_ERROR(ReadStorage(root));
    FSDP_ASSIGN_OR_RETURN(const PickleValue entries, DictOf(root, "state_dict_metadata"));
    FSDP_RETURN_IF_ERROR(budget_.Take(entries, entries.size() * kNumberBytes, 0));
    // Also refuses names that occur twice, before any entry is built.
    FSDP_RETURN_IF_ERROR(types_.Fill(entries));
    FSDP_RETURN_IF_ERROR(AddEntries(root, entries));
    FSDP_RETURN_IF_ERROR(budget_.Take(root, 0, objects_.sizes().memory() + objects_.slices().memory()));
    metadata_.chunks.SetParts(objects_.TakeSizes(), objects_.TakeSlices());
    const std::optional<PickleValue> plans = FindAttribute(root.state(), "all_local_plans");
    if (plans && plans->is_sequence()) metadata_.plans = static_cast<int>(plans->size());
    return std::move(metadata_);
  }

 private:
  static absl::StatusOr<PickleValue> DictOf(PickleValue root, const std::string& name) {
    const std::optional<PickleValue> dict = FindAttribute(root.state(), name);
    if (!dict) return Broken(root, absl::StrCat("an object without ", Quote(name)));
    if (!dict->is(PickleKind::kDict)) return Broken(*dict, absl::StrCat(name, " is not a dict"));
    return *dict;
  }

  // Reads every position once: one that no tensor has is also an error.
  absl::Status ReadStorage(PickleValue root) {
    FSDP_ASSIGN_OR_RETURN(const PickleValue storage, DictOf(root, "storage_data"));
    FSDP_RETURN_IF_ERROR(budget_.Take(storage, storage.size() * kStorageBytes, 0));
    storage_.Reserve(storage.size());
    for (int64_t i = 0; i < storage.size(); ++i) {
      const auto [index, info] = storage.member(i);
      const int64_t before = objects_.memory();
      FSDP_ASSIGN_OR_RETURN(const Key key, objects_.ReadKey(index));
      FSDP_ASSIGN_OR_RETURN(const uint32_t slice, objects_.ReadPlace(objects_.Name(key), info));
      storage_.Add(key, slice);
      FSDP_RETURN_IF_ERROR(budget_.Take(info, objects_.memory() - before, 0));
    }
    return absl::OkStatus();
  }

  // In the order of planner_data, which is the order of the state dict: optimizers' ids depend on the model's order.
  // state_dict_metadata has the order in which the ranks' plans were merged. planner_data may be absent or lack names;
  // such names are their own paths.
  absl::Status AddEntries(PickleValue root, PickleValue entries) {
    metadata_.entries.reserve(entries.size());
    const std::optional<PickleValue> paths = FindAttribute(root.state(), "planner_data");
    const bool has_paths = paths && paths->is(PickleKind::kDict);
    NameIndex index;
    if (has_paths) {
      FSDP_RETURN_IF_ERROR(budget_.Take(*paths, paths->size() * kNumberBytes, 0));
      FSDP_RETURN_IF_ERROR(index.Fill(*paths));
    }
    for (int64_t i = 0; has_paths && i < paths->size(); ++i) {
      const auto [key, value] = paths->member(i);
      FSDP_ASSIGN_OR_RETURN(DcpEntry::Path path, ReadPath(value));
      const std::optional<PickleValue> type = types_.Find(key.text());
      if (!type) continue;
      if (path.empty()) path = {{std::string(key.text()), false}};
      FSDP_RETURN_IF_ERROR(AddEntry(key, *type, path));
    }
    for (int64_t i = 0; i < entries.size(); ++i) {
      const auto [key, type] = entries.member(i);
      if (has_paths && index.Find(key.text())) continue;
      FSDP_RETURN_IF_ERROR(AddEntry(key, type, {{std::string(key.text()), false}}));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<DcpEntry::Path> ReadPath(PickleValue value) {
    if (!value.is_sequence()) return Broken(value, "a path that is not a tuple");
    constexpr int64_t kMostElements = 1000;  // a longer one is not the path of a state dict, wherever it would lead
    if (value.size() > kMostElements) return Broken(value, absl::StrCat("a path of ", value.size(), " elements"));
    DcpEntry::Path path;
    for (int64_t i = 0; i < value.size(); ++i) {
      const PickleValue element = value.at(i);
      if (element.is(PickleKind::kInt)) {
        path.push_back({absl::StrCat(element.integer()), true});
      } else {
        FSDP_RETURN_IF_ERROR(CheckText(element));
        path.push_back({std::string(element.text()), false});
      }
    }
    return path;
  }

  // Adds the tensor or value that state_dict_metadata has under the name `key`. Names and paths may be one text of the
  // pickle many times over.
  absl::Status AddEntry(PickleValue key, PickleValue type, const DcpEntry::Path& path) {
    const std::string name(key.text());
    int64_t nbytes = static_cast<int64_t>(2 * name.size());
    for (const DcpEntry::PathElement& element : path) nbytes += static_cast<int64_t>(element.name.size() + 1);
    FSDP_RETURN_IF_ERROR(budget_.Take(type, kEntryBytes + nbytes, kLaterEntryBytes + nbytes));
    if (DcpObjects::IsBytes(type)) {
      FSDP_ASSIGN_OR_RETURN(const uint32_t slice, FindSlice(name, Key::kNoOffsets));
      metadata_.entries.push_back(DcpEntry::OfValue(name, path, slice));
      return absl::OkStatus();
    }
    if (!DcpObjects::IsTensor(type)) return Broken(type, absl::StrCat(Quote(name), " is neither a tensor nor a value"));
    FSDP_RETURN_IF_ERROR(AddTensor(name, type));
    const auto tensor = static_cast<uint32_t>(metadata_.tensors.size() - 1);
    metadata_.entries.push_back(DcpEntry::OfTensor(name, path, tensor));
    return absl::OkStatus();
  }

  // The slice of a chunk, or of a value if there are no offsets. A chunk without a position is damage.
  absl::StatusOr<uint32_t> FindSlice(const std::string& name, uint32_t offsets) const {
    if (const std::optional<uint32_t> slice = storage_.Find(name, offsets)) return *slice;
    const bool is_chunk = offsets != Key::kNoOffsets;
    const std::string which =
        is_chunk ? absl::StrCat(", chunk at [", absl::StrJoin(objects_.sizes()[offsets], ", "), "],") : "";
    return absl::DataLossError(absl::StrCat(Quote(name), which, " is missing in storage_data"));
  }

  // Leaves out empty chunks, of ranks without rows.
  absl::Status AddTensor(const std::string& name, PickleValue value) {
    const int64_t before = objects_.memory();
    FSDP_ASSIGN_OR_RETURN(const DcpObjects::Tensor read, objects_.ReadTensor(name, value, budget_));
    FSDP_RETURN_IF_ERROR(budget_.Take(value, objects_.memory() - before, 0));
    const DcpSizes& sizes = objects_.sizes();
    const absl::StatusOr<Shape> shape = Shape::Create(sizes[read.size]);
    if (!shape.ok()) return Broken(value, std::string(shape.status().message()));
    FSDP_RETURN_IF_ERROR(budget_.Take(value, read.chunks * kChunkBytes, read.chunks * kLaterChunkBytes));
    std::vector<DcpBox> boxes;
    for (uint32_t i = read.first_chunk; i < read.first_chunk + read.chunks; ++i) {
      const DcpObjects::Chunk chunk = objects_.chunk(i);
      const absl::Span<const int64_t> counts = sizes[chunk.count];
      const bool is_empty = std::count(counts.begin(), counts.end(), 0) != 0;  // a rank without rows
      if (!is_empty) boxes.push_back({sizes[chunk.start], counts, i});
    }
    const absl::Status covered = CheckChunkCover(*shape, boxes);
    if (!covered.ok()) return Annotate(covered, absl::StrCat("tensor ", Quote(name)));
    DcpTensor& tensor = metadata_.tensors.emplace_back();
    tensor.dtype = read.dtype;
    tensor.shape = *shape;
    tensor.first_chunk = static_cast<uint32_t>(metadata_.chunks.size());
    for (const DcpBox& box : boxes) {
      const DcpObjects::Chunk chunk = objects_.chunk(box.number);
      FSDP_ASSIGN_OR_RETURN(const uint32_t slice, FindSlice(name, chunk.start));
      metadata_.chunks.Add(chunk.start, chunk.count, slice);
    }
    tensor.end_chunk = static_cast<uint32_t>(metadata_.chunks.size());
    return absl::OkStatus();
  }

  PickleBudget budget_;
  DcpObjects& objects_;
  StorageIndex storage_;
  NameIndex types_;  // of state_dict_metadata
  DcpMetadata metadata_;
};

// Boxes [begin, end), sorted by start and count, agree in all dimensions before `d` and must cover the others: in
// dimension d they form groups of one range, the ranges follow each other without a gap, and each group covers the
// dimensions after d. Linear in boxes for each dimension, whereas testing pairs of boxes would be quadratic.
absl::Status CheckDimension(const Shape& shape, int d, std::vector<DcpBox>::const_iterator begin,
                            std::vector<DcpBox>::const_iterator end) {
  if (d == shape.rank()) {
    return end - begin == 1 ? absl::OkStatus() : absl::DataLossError("two chunks have the same box");
  }
  int64_t covered = 0;
  while (begin != end) {
    const int64_t start = begin->start[d];
    const int64_t count = begin->count[d];
    if (start != covered) {
      return absl::DataLossError(absl::StrCat("indices [", std::min(start, covered), ", ", std::max(start, covered),
                                              ") of dimension ", d,
                                              start > covered ? " are missing" : " are held twice"));
    }
    auto last = begin;
    while (last != end && last->start[d] == start && last->count[d] == count) ++last;
    FSDP_RETURN_IF_ERROR(CheckDimension(shape, d + 1, begin, last));
    covered = start + count;
    begin = last;
  }
  if (covered == shape.dim(d)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("indices [", covered, ", ", shape.dim(d), ") of dimension ", d, " are missing"));
}

}  // namespace

DcpEntry::DcpEntry(std::string name, const Path& path, uint32_t number, bool is_tensor)
    : name_(std::move(name)), number_(number), is_tensor_(is_tensor) {
  for (const PathElement& element : path) {
    absl::StrAppend(&joined_, ends_.empty() ? "" : ".", element.name);
    ends_.push_back(static_cast<uint32_t>(2 * joined_.size() + (element.is_index ? 1 : 0)));
  }
  // A million entries usually have equal names and paths: one copy is enough.
  if (joined_ == name_) joined_ = std::string();
}

DcpEntry::Path DcpEntry::path() const {
  const std::string& joined = joined_.empty() ? name_ : joined_;
  Path path;
  size_t begin = 0;
  for (const uint32_t end : ends_) {
    path.push_back({joined.substr(begin, end / 2 - begin), end % 2 == 1});
    begin = end / 2 + 1;
  }
  return path;
}

absl::Status CheckChunkCover(const Shape& shape, std::vector<DcpBox>& boxes) {
  for (const DcpBox& box : boxes) {
    bool fits = static_cast<int>(box.start.size()) == shape.rank() && box.count.size() == box.start.size();
    for (int d = 0; fits && d < shape.rank(); ++d) {
      // Written so that nothing overflows: start + count might.
      fits = box.start[d] <= shape.dim(d) && box.count[d] <= shape.dim(d) - box.start[d];
    }
    if (fits) continue;
    return absl::DataLossError(absl::StrCat("chunk [", absl::StrJoin(box.start, ", "), "] + [",
                                            absl::StrJoin(box.count, ", "), "] reaches beyond ", shape.ToString()));
  }
  if (shape.numel() == 0) return absl::OkStatus();
  const auto before = [](absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  };
  std::sort(boxes.begin(), boxes.end(), [&](const DcpBox& a, const DcpBox& b) {
    if (a.start != b.start) return before(a.start, b.start);
    return a.count != b.count ? before(a.count, b.count) : a.number < b.number;
  });
  // Replicas (HSDP saved without deduplication) have equal boxes: one of them is enough.
  const auto same = [](const DcpBox& a, const DcpBox& b) { return a.start == b.start && a.count == b.count; };
  boxes.erase(std::unique(boxes.begin(), boxes.end(), same), boxes.end());
  return CheckDimension(shape, 0, boxes.begin(), boxes.end());
}

absl::StatusOr<DcpMetadata> ParseDcpMetadata(std::string_view bytes) {
  DcpObjects objects(bytes);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Pickle> pickle,
                        Pickle::Parse(bytes, {.is_allowed = IsDcpGlobal, .objects = &objects}));
  return MetadataReader(*pickle, objects).Read(pickle->root());
}

}  // namespace fsdp
