// SPDX-License-Identifier: Apache-2.0
//
// A pickle is a graph: one list of ranks may be in a million records. So what is copied from it is counted (Count), and
// meshes, which the library shares, are read once.
#include "fsdp/checkpoint/foreign/torch_checkpointing/items_metadata.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/plain_pickle.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr size_t kMaxPathBytes = size_t{64} << 10;
constexpr size_t kMaxFileBytes = 4096;
constexpr int64_t kMaxRank = 64;                   // dimensions of a tensor
constexpr int64_t kMaxCounted = int64_t{1} << 26;  // numbers that are copied in all

absl::StatusOr<DType> DTypeOf(PickleValue value) {
  FSDP_ASSIGN_OR_RETURN(const std::string name, PickleText(value, 64));
  const absl::StatusOr<DType> dtype = DTypeOfGlobal(name);
  if (dtype.ok() && absl::StartsWith(name, "torch.") && !absl::EndsWith(name, "Storage")) return dtype;
  return UnsupportedPickle(value, absl::StrCat(Quote(name), " is not a dtype that this project supports"));
}

absl::StatusOr<ItemFormat> FormatOf(PickleValue value) {
  FSDP_ASSIGN_OR_RETURN(const std::string name, PickleText(value, 256));
  if (name == "TorchSerialization") return ItemFormat::kTorch;
  if (name == "SafetensorsSerialization") return ItemFormat::kSafetensors;
  if (name == "JsonSerialization") return ItemFormat::kJson;
  if (name == "RawSerialization") return ItemFormat::kRaw;
  return UnsupportedPickle(value, absl::StrCat("the serialization format ", Quote(name), " is not known"));
}

// A relative path that stays in the directory.
absl::Status CheckFile(PickleValue value, const std::string& file) {
  bool is_inside = !file.empty() && file[0] != '/' && file.find('\0') == file.npos;
  for (const absl::string_view part : absl::StrSplit(file, '/')) is_inside &= !part.empty() && part != "..";
  return is_inside ? absl::OkStatus()
                   : BrokenPickle(value, absl::StrCat("the file ", Quote(file), " is not in the directory"));
}

// metadata.pkl is a pickled dict of plain values. Version 2.0: {"metadata": {item: {"rank_to_layout_info": {rank:
// file}, "nested_path_to_metadata": {path: [record]}}}}; version 1.0 has the paths of all items in one dict and the
// files by rank. A record is {"sharding_metadata": {"type", "data"}, "ranks"}. The parser copies what it needs, with a
// bound on the sum, since parts of a pickle may be shared by any number of records.
class Parser {
 public:
  absl::StatusOr<ItemsMetadata> Parse(PickleValue root) {
    FSDP_ASSIGN_OR_RETURN(const PickleValue metadata, PickleMember(root, "metadata"));
    FSDP_ASSIGN_OR_RETURN(const PickleValue world_size, PickleMember(root, "world_size"));
    FSDP_ASSIGN_OR_RETURN(const int64_t ranks, PickleInteger(world_size, kMaxItemRanks + 1));
    if (ranks == 0) return BrokenPickle(world_size, "a world_size of 0");
    result_.world_size = static_cast<int>(ranks);
    const absl::StatusOr<PickleValue> version = PickleMember(root, "version");
    const std::string text = version.ok() && version->is(Kind::kString) ? std::string(version->text()) : "1.0";
    if (text != "1.0" && text != "2.0") {
      return UnsupportedPickle(*version, absl::StrCat("version ", Quote(text), ", expected \"1.0\" or \"2.0\""));
    }
    if (!metadata.is(Kind::kDict)) return BrokenPickle(metadata, "\"metadata\" is no dict");
    FSDP_RETURN_IF_ERROR(text == "2.0" ? ParseItems(metadata) : ParseFlat(metadata, root));
    FSDP_RETURN_IF_ERROR(CheckFiles(root));
    return std::move(result_);
  }

 private:
  absl::Status ParseItems(PickleValue metadata) {
    for (int64_t i = 0; i < metadata.size(); ++i) {
      const auto [key, value] = metadata.member(i);
      FSDP_ASSIGN_OR_RETURN(const std::string name, PickleText(key, kMaxFileBytes));
      FSDP_ASSIGN_OR_RETURN(ItemMetadata* const item, NewItem(name, key));
      FSDP_ASSIGN_OR_RETURN(const PickleValue layouts, PickleMember(value, "rank_to_layout_info"));
      if (!layouts.is(Kind::kDict)) return BrokenPickle(layouts, "\"rank_to_layout_info\" is no dict");
      std::vector<bool> has(result_.world_size, false);
      for (int64_t k = 0; k < layouts.size(); ++k) {
        const auto [rank_key, layout] = layouts.member(k);
        FSDP_ASSIGN_OR_RETURN(const int64_t rank, PickleRank(rank_key, result_.world_size));
        FSDP_RETURN_IF_ERROR(AddLayout(rank, layout, *item));
        has[rank] = true;
      }
      const auto missing = std::find(has.begin(), has.end(), false);
      if (missing != has.end()) {
        return BrokenPickle(layouts,
                            absl::StrCat("item ", Quote(name), " has no file of rank ", missing - has.begin()));
      }
      FSDP_ASSIGN_OR_RETURN(const PickleValue paths, PickleMember(value, "nested_path_to_metadata"));
      if (!paths.is(Kind::kDict)) return BrokenPickle(paths, "\"nested_path_to_metadata\" is no dict");
      for (int64_t k = 0; k < paths.size(); ++k) {
        const auto [path_key, records] = paths.member(k);
        FSDP_ASSIGN_OR_RETURN(ItemPath path, ParsePath(path_key));
        FSDP_RETURN_IF_ERROR(AddTensor(std::move(path), records, *item));
      }
    }
    return absl::OkStatus();
  }

  // Version 1.0.
  absl::Status ParseFlat(PickleValue metadata, PickleValue root) {
    absl::flat_hash_map<std::string, size_t> places;
    for (int64_t i = 0; i < metadata.size(); ++i) {
      const auto [key, records] = metadata.member(i);
      FSDP_ASSIGN_OR_RETURN(ItemPath path, ParsePath(key));
      if (path[0].is_integer) return BrokenPickle(key, "a path that does not begin with an item");
      const auto [place, is_new] = places.try_emplace(path[0].name, result_.items.size());
      if (is_new) FSDP_RETURN_IF_ERROR(NewItem(path[0].name, key).status());
      path.erase(path.begin());
      FSDP_RETURN_IF_ERROR(AddTensor(std::move(path), records, result_.items[place->second]));
    }
    FSDP_ASSIGN_OR_RETURN(const PickleValue ranks, PickleMember(root, "rank_to_layout_info_mappings"));
    if (!ranks.is(Kind::kDict)) return BrokenPickle(ranks, "\"rank_to_layout_info_mappings\" is no dict");
    for (int64_t i = 0; i < ranks.size(); ++i) {
      const auto [key, items] = ranks.member(i);
      FSDP_ASSIGN_OR_RETURN(const int64_t rank, PickleRank(key, result_.world_size));
      if (!items.is(Kind::kDict)) return BrokenPickle(items, "the files of a rank are no dict");
      for (int64_t k = 0; k < items.size(); ++k) {
        const auto [item, layout] = items.member(k);
        const auto place = item.is(Kind::kString) ? places.find(std::string(item.text())) : places.end();
        if (place != places.end()) FSDP_RETURN_IF_ERROR(AddLayout(rank, layout, result_.items[place->second]));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ItemMetadata*> NewItem(const std::string& name, PickleValue value) {
    if (name.empty() || name.find('\0') != name.npos || name.find('/') != name.npos) {
      return BrokenPickle(value, absl::StrCat("the item ", Quote(name), " cannot have files"));
    }
    if (!names_.insert(name).second)
      return BrokenPickle(value, absl::StrCat("the item ", Quote(name), " occurs twice"));
    FSDP_RETURN_IF_ERROR(Count(value, result_.world_size));
    ItemMetadata& item = result_.items.emplace_back();
    item.name = name;
    item.layouts.resize(result_.world_size);
    return &item;
  }

  absl::Status AddLayout(int64_t rank, PickleValue value, ItemMetadata& item) {
    if (value.is(Kind::kNone)) return absl::OkStatus();
    ItemLayout layout;
    FSDP_ASSIGN_OR_RETURN(const PickleValue file, PickleMember(value, "file_path"));
    FSDP_ASSIGN_OR_RETURN(layout.file, PickleText(file, kMaxFileBytes));
    FSDP_RETURN_IF_ERROR(Count(file, static_cast<int64_t>(layout.file.size())));
    FSDP_RETURN_IF_ERROR(CheckFile(file, layout.file));
    FSDP_ASSIGN_OR_RETURN(const PickleValue serialization, PickleMember(value, "serialization_format"));
    FSDP_ASSIGN_OR_RETURN(const PickleValue type, PickleMember(serialization, "type"));
    FSDP_ASSIGN_OR_RETURN(layout.format, FormatOf(type));
    item.layouts[rank] = std::move(layout);
    return absl::OkStatus();
  }

  // No two ranks and items share a file.
  absl::Status CheckFiles(PickleValue root) const {
    absl::flat_hash_set<std::string> files;
    for (const ItemMetadata& item : result_.items) {
      for (int rank = 0; rank < result_.world_size; ++rank) {
        const std::string file = item.LayoutOf(rank).file;
        if (!files.insert(file).second)
          return BrokenPickle(root, absl::StrCat("the file ", Quote(file), " is named twice"));
      }
    }
    return absl::OkStatus();
  }

  // A path is a text of JSON: ["layers", 0, "weight"].
  absl::StatusOr<ItemPath> ParsePath(PickleValue value) {
    FSDP_ASSIGN_OR_RETURN(const std::string text, PickleText(value, kMaxPathBytes));
    FSDP_RETURN_IF_ERROR(Count(value, static_cast<int64_t>(text.size())));
    const PythonJson json = ParsePythonJson(text);
    if (!json.is_array() || json.empty())
      return BrokenPickle(value, absl::StrCat("the path ", Quote(text), " is no list"));
    ItemPath path;
    for (const PythonJson& element : json) {
      if (element.is_string()) {
        path.push_back({element.get<std::string>(), false});
      } else if (element.is_number_integer()) {
        path.push_back({element.dump(), true});
      } else {
        return BrokenPickle(value,
                            absl::StrCat("the path ", Quote(text), " has an element that is neither text nor integer"));
      }
    }
    return path;
  }

  absl::Status AddTensor(ItemPath path, PickleValue records, ItemMetadata& item) {
    if (!records.is(Kind::kList) && !records.is(Kind::kTuple))
      return BrokenPickle(records, "the records of a path are no list");
    if (records.size() == 0) return BrokenPickle(records, "a path without a record");
    ItemTensor& tensor = item.tensors.emplace_back();
    std::string key;
    for (const ItemPathElement& element : path) key = ItemPathKey(key, element.name, element.is_integer);
    tensor.path = std::move(path);
    if (!item.by_path.try_emplace(std::move(key), item.tensors.size() - 1).second) {
      return BrokenPickle(records, "a path occurs twice");
    }
    for (int64_t i = 0; i < records.size(); ++i) {
      ItemTensor::Record& record = tensor.records.emplace_back();
      FSDP_ASSIGN_OR_RETURN(const PickleValue sharding, PickleMember(records.at(i), "sharding_metadata"));
      FSDP_ASSIGN_OR_RETURN(const PickleValue type, PickleMember(sharding, "type"));
      FSDP_ASSIGN_OR_RETURN(const PickleValue data, PickleMember(sharding, "data"));
      if (type.is_string("DTensorShardingMetadata")) {
        FSDP_ASSIGN_OR_RETURN(record.dtensor, DTensorOf(data));
      } else if (type.is_string("default_tensor_v1")) {
        FSDP_ASSIGN_OR_RETURN(record.shards, ShardsOf(data));
      } else {
        return UnsupportedPickle(type, absl::StrCat("the type of sharding_metadata ",
                                                    type.is(Kind::kString) ? Quote(type.text()) : "", " is not known"));
      }
      FSDP_ASSIGN_OR_RETURN(const PickleValue ranks, PickleMember(records.at(i), "ranks"));
      FSDP_RETURN_IF_ERROR(ReadRanks(ranks, record));
    }
    return absl::OkStatus();
  }

  // The ranks of a mesh are stated twice.
  absl::Status ReadRanks(PickleValue value, ItemTensor::Record& record) {
    FSDP_ASSIGN_OR_RETURN(std::vector<int64_t> ranks, Integers(value, kMaxItemRanks, result_.world_size));
    if (ranks.empty()) return BrokenPickle(value, "a record without ranks");
    if (record.dtensor == nullptr) {
      std::sort(ranks.begin(), ranks.end());
      record.ranks.assign(ranks.begin(), ranks.end());
      return absl::OkStatus();
    }
    const std::vector<int32_t>& of_mesh = record.dtensor->mesh->ranks;
    const bool is_equal = std::equal(ranks.begin(), ranks.end(), of_mesh.begin(), of_mesh.end());
    std::sort(ranks.begin(), ranks.end());
    std::vector<int32_t> sorted;
    if (!is_equal) {
      sorted = of_mesh;
      std::sort(sorted.begin(), sorted.end());
    }
    if (is_equal || std::equal(ranks.begin(), ranks.end(), sorted.begin(), sorted.end())) return absl::OkStatus();
    return BrokenPickle(value,
                        absl::StrCat("a record has other ranks than its mesh ", record.dtensor->mesh->ToString()));
  }

  absl::StatusOr<std::vector<int64_t>> Integers(PickleValue value, int64_t max_count, int64_t limit) {
    if (!value.is_sequence() || value.size() > max_count) return BrokenPickle(value, "a list of integers was expected");
    FSDP_RETURN_IF_ERROR(Count(value, value.size()));
    std::vector<int64_t> integers;
    integers.reserve(value.size());
    for (int64_t i = 0; i < value.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(integers.emplace_back(), PickleInteger(value.at(i), limit));
    }
    return integers;
  }

  absl::StatusOr<Shape> ShapeOf(PickleValue value) {
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, Integers(value, kMaxRank, int64_t{1} << 60));
    const absl::StatusOr<Shape> shape = Shape::Create(sizes);
    return shape.ok() ? shape : BrokenPickle(value, std::string(shape.status().message()));
  }

  absl::StatusOr<std::shared_ptr<const DTensor>> DTensorOf(PickleValue value) {
    auto tensor = std::make_shared<DTensor>();
    FSDP_ASSIGN_OR_RETURN(const PickleValue shape, PickleMember(value, "global_shape"));
    FSDP_ASSIGN_OR_RETURN(tensor->shape, ShapeOf(shape));
    FSDP_ASSIGN_OR_RETURN(const PickleValue dtype, PickleMember(value, "dtype"));
    FSDP_ASSIGN_OR_RETURN(tensor->dtype, DTypeOf(dtype));
    FSDP_ASSIGN_OR_RETURN(const PickleValue mesh, PickleMember(value, "mesh_spec"));
    FSDP_ASSIGN_OR_RETURN(tensor->mesh, MeshOf(mesh));
    FSDP_ASSIGN_OR_RETURN(const PickleValue placements, PickleMember(value, "placements"));
    if (!placements.is_sequence() || placements.size() > kMaxRank)
      return BrokenPickle(placements, "placements are no list");
    for (int64_t i = 0; i < placements.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(tensor->placements.emplace_back(), PlacementOf(placements.at(i)));
    }
    const absl::Status checked = CheckDTensor(*tensor);
    if (!checked.ok()) return Annotate(checked, absl::StrCat("byte ", value.place(), " of the pickle"));
    return tensor;
  }

  static absl::StatusOr<DTensorPlacement> PlacementOf(PickleValue value) {
    FSDP_ASSIGN_OR_RETURN(const PickleValue type, PickleMember(value, "type"));
    DTensorPlacement placement;
    if (type.is_string("Replicate")) return placement;
    const bool is_strided = type.is_string("StridedShard");
    if (!is_strided && !type.is_string("Shard")) return UnsupportedPickle(type, "a placement that is not known");
    placement.kind = is_strided ? DTensorPlacement::Kind::kStridedShard : DTensorPlacement::Kind::kShard;
    FSDP_ASSIGN_OR_RETURN(const PickleValue dim, PickleMember(value, "dim"));
    FSDP_ASSIGN_OR_RETURN(const int64_t number, PickleInteger(dim, kMaxRank));
    placement.dim = static_cast<int32_t>(number);
    if (!is_strided) return placement;
    FSDP_ASSIGN_OR_RETURN(const PickleValue factor, PickleMember(value, "split_factor"));
    FSDP_ASSIGN_OR_RETURN(placement.split_factor, PickleInteger(factor, kMaxMeshRanks + 1));
    return placement;
  }

  // Records share the pickled mesh, so its ranks are read once.
  absl::StatusOr<std::shared_ptr<const StoredMesh>> MeshOf(PickleValue value) {
    const auto known = meshes_.find(value.id());
    if (known != meshes_.end()) return known->second;
    auto mesh = std::make_shared<StoredMesh>();
    FSDP_ASSIGN_OR_RETURN(const PickleValue shape, PickleMember(value, "mesh_shape"));
    FSDP_ASSIGN_OR_RETURN(mesh->shape, Integers(shape, kMaxRank, kMaxMeshRanks + 1));
    FSDP_ASSIGN_OR_RETURN(const PickleValue data, PickleMember(value, "mesh_data"));
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks, Integers(data, kMaxItemRanks, result_.world_size));
    mesh->ranks.assign(ranks.begin(), ranks.end());
    const absl::StatusOr<PickleValue> names = PickleMember(value, "mesh_dim_names");
    if (names.ok() && !names->is(Kind::kNone)) {
      if (!names->is_sequence() || names->size() > kMaxRank)
        return BrokenPickle(*names, "the names of a mesh are no list");
      for (int64_t i = 0; i < names->size(); ++i) {
        FSDP_ASSIGN_OR_RETURN(mesh->names.emplace_back(), PickleText(names->at(i), kMaxFileBytes));
      }
    }
    const absl::Status checked = CheckMesh(*mesh);
    if (!checked.ok()) return Annotate(checked, absl::StrCat("byte ", value.place(), " of the pickle"));
    return meshes_[value.id()] = std::move(mesh);
  }

  // Three lists of equal lengths: where each shard is in the whole, where in the rank's tensor, and how large.
  absl::StatusOr<std::shared_ptr<const DefaultShards>> ShardsOf(PickleValue value) {
    auto result = std::make_shared<DefaultShards>();
    FSDP_ASSIGN_OR_RETURN(const PickleValue shape, PickleMember(value, "global_shape"));
    FSDP_ASSIGN_OR_RETURN(result->shape, ShapeOf(shape));
    FSDP_ASSIGN_OR_RETURN(const PickleValue dtype, PickleMember(value, "dtype"));
    FSDP_ASSIGN_OR_RETURN(result->dtype, DTypeOf(dtype));
    FSDP_ASSIGN_OR_RETURN(const PickleValue starts, PickleMember(value, "global_offsets"));
    FSDP_ASSIGN_OR_RETURN(const PickleValue locals, PickleMember(value, "local_offsets"));
    FSDP_ASSIGN_OR_RETURN(const PickleValue sizes, PickleMember(value, "local_sizes"));
    const bool is_list = starts.is_sequence() && locals.is_sequence() && sizes.is_sequence();
    if (!is_list || starts.size() != sizes.size() || locals.size() != sizes.size()) {
      return BrokenPickle(value, "offsets and sizes of different numbers of shards");
    }
    const auto rank = static_cast<size_t>(result->shape.rank());
    for (int64_t i = 0; i < sizes.size(); ++i) {
      DefaultShards::Shard& shard = result->shards.emplace_back();
      FSDP_ASSIGN_OR_RETURN(shard.box.start, Integers(starts.at(i), kMaxRank, int64_t{1} << 60));
      FSDP_ASSIGN_OR_RETURN(shard.box.count, Integers(sizes.at(i), kMaxRank, int64_t{1} << 60));
      FSDP_ASSIGN_OR_RETURN(shard.local_start, Integers(locals.at(i), kMaxRank, int64_t{1} << 60));
      bool is_inside =
          shard.box.start.size() == rank && shard.box.count.size() == rank && shard.local_start.size() == rank;
      for (size_t d = 0; is_inside && d < rank; ++d) {
        is_inside = shard.box.start[d] + shard.box.count[d] <= result->shape.dim(static_cast<int>(d));
      }
      if (!is_inside)
        return BrokenPickle(sizes.at(i), absl::StrCat("shard ", i, " is not inside of ", result->shape.ToString()));
    }
    return result;
  }

  // Bounds the copies of parts that many records may share.
  absl::Status Count(PickleValue value, int64_t numbers) {
    counted_ += numbers;
    if (counted_ <= kMaxCounted) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("byte ", value.place(), " of the pickle: its lists have more than ", kMaxCounted, " numbers"));
  }

  ItemsMetadata result_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<const StoredMesh>> meshes_;  // by PickleValue::id
  int64_t counted_ = 0;
};

}  // namespace

// Lengths in front, so that a dot or a digit in a name cannot make two paths equal.
std::string ItemPathKey(const std::string& above, std::string_view name, bool is_integer) {
  return absl::StrCat(above, is_integer ? "i" : "s", name.size(), ":", absl::string_view(name.data(), name.size()));
}

int64_t ItemTensor::Record::rank_count() const {
  return static_cast<int64_t>(dtensor == nullptr ? ranks.size() : dtensor->mesh->ranks.size());
}

ItemLayout ItemMetadata::LayoutOf(int rank) const {
  if (layouts[rank]) return *layouts[rank];
  return {absl::StrCat(name, "_", rank, ".pt"), ItemFormat::kTorch};
}

bool IsItemsMetadata(std::string_view head) {
  const absl::string_view text(head.data(), head.size());
  return absl::StartsWith(text, "\x80") && absl::StrContains(text.substr(0, 64), "metadata") &&
         (absl::StrContains(text, "nested_path_to_metadata") || absl::StrContains(text, "sharding_metadata") ||
          absl::StrContains(text, "world_size"));
}

absl::StatusOr<ItemsMetadata> ParseItemsMetadata(std::string_view bytes) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Pickle> pickle, Pickle::Parse(bytes, {}));
  return Parser().Parse(pickle->root());
}

}  // namespace fsdp
