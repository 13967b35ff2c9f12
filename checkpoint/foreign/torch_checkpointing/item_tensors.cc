// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_tensors.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/joined_tensor.h"

namespace fsdp {
namespace {

// A generator's state is as its rank left it.
bool IsGeneratorState(const ItemPlace& place, DType dtype, const Shape& shape) {
  const std::string name = absl::AsciiStrToLower(place.name);
  return !place.is_in_optimizer && dtype == DType::kUInt8 && shape.rank() == 1 &&
         (absl::StrContains(name, "rng") || absl::StrContains(name, "generator"));
}

}  // namespace

ItemPlace ItemPlace::Inside(const std::string& child, bool is_integer) const {
  return {absl::StrCat(name, ".", child), ItemPathKey(key, child, is_integer), depth + 1, is_in_optimizer};
}

void ItemTensors::Counted::Count(const std::string& what) {
  if (count++ == 0) first = what;
}

std::string ItemTensors::Counted::ToString(const std::string& what) const {
  if (count == 0) return "";
  return absl::StrCat(count, count == 1 ? " copy of a tensor, " : " copies of tensors, such as ", first, ", ", what);
}

ItemTensors::ItemTensors(const PlannedItem& item, const ItemPlan& plan, FilePool& pool, ItemMeshes& meshes,
                         CopyBudget& budget, JoinedItems& items)
    : item_(item),
      metadata_(item.metadata < 0 ? nullptr : &plan.metadata.items[item.metadata]),
      is_strict_(!plan.has_dtensors),
      pool_(pool),
      meshes_(meshes),
      budget_(budget),
      items_(items),
      first_(items.tensors.size()) {
  if (metadata_ != nullptr) seen_.resize(metadata_->tensors.size());
}

void ItemTensors::StartFile(int rank, ItemFile& file, int32_t number) {
  rank_ = rank;
  file_ = &file;
  file_number_ = number;
  views_.clear();
}

absl::StatusOr<ItemTensors::Division> ItemTensors::DivisionOfDTensor(const ItemPlace& place, const DTensor& own,
                                                                     int tensor) {
  // The rank that wrote the file is in its meshes.
  if (own.mesh->place >= 0 && own.mesh->ranks[own.mesh->place] != rank_) {
    return Broken(place,
                  absl::StrCat("was written by rank ", own.mesh->ranks[own.mesh->place],
                               ", but the file is named for rank ", rank_, ": files of ranks were swapped or renamed"));
  }
  auto dtensor = std::make_shared<DTensor>(meshes_.WithMesh(own));
  Division division;
  division.dtype = file_->dtype(tensor);
  division.shape = dtensor->shape;
  division.place = meshes_.PlaceOf(*dtensor->mesh, rank_);
  if (division.place < 0 && file_->shape(tensor).numel() != 0) {
    return Broken(place, absl::StrCat("has elements, but its mesh ", own.mesh->ToString(), " is without rank ", rank_));
  }
  if (!dtensor->is_whole()) division.dtensor = std::move(dtensor);
  return division;
}

// The division of a tensor, from up to two places: a DTensor in the file itself, and the record of the
// rank in metadata.pkl. If there are both they must agree; without any the tensor is whole.
absl::StatusOr<ItemTensors::Division> ItemTensors::DivisionOf(const ItemPlace& place, int tensor) {
  const DTensor* const own = file_->dtensor(tensor);
  FSDP_ASSIGN_OR_RETURN(const ItemTensor::Record* const record, RecordOf(place, own));
  if (own != nullptr) return DivisionOfDTensor(place, *own, tensor);
  Division division;
  division.dtype = file_->dtype(tensor);
  division.shape = file_->shape(tensor);
  if (record == nullptr) return division;
  // From here the record decides: the file has a plain tensor, which must be as large as the record's part of this
  // rank.
  const Shape local = division.shape;
  if (record->shards != nullptr) {
    division.shards = record->shards;
    division.shape = record->shards->shape;
    bool fits = record->shards->dtype == division.dtype && local.rank() == division.shape.rank();
    for (const DefaultShards::Shard& shard : record->shards->shards) {
      for (int d = 0; fits && d < local.rank(); ++d) {
        fits = shard.box.count[d] <= local.dim(d) && shard.local_start[d] <= local.dim(d) - shard.box.count[d];
      }
    }
    if (!fits) return Unlike(place, local, division.shape, "");
    return division;
  }
  auto dtensor = std::make_shared<DTensor>(meshes_.WithMesh(*record->dtensor));
  division.shape = dtensor->shape;
  division.place = meshes_.PlaceOf(*dtensor->mesh, rank_);
  const Box box = BoxOf(*dtensor, division.place);
  if (dtensor->dtype != division.dtype || local.dims() != absl::MakeConstSpan(box.count)) {
    return Unlike(place, local, division.shape, dtensor->ToString());
  }
  if (!dtensor->is_whole()) division.dtensor = std::move(dtensor);
  return division;
}

// The record of the rank, or null; `own` is what the file says.
absl::StatusOr<const ItemTensor::Record*> ItemTensors::RecordOf(const ItemPlace& place, const DTensor* own) {
  if (metadata_ == nullptr) return nullptr;
  const auto at = metadata_->by_path.find(place.key);
  if (at == metadata_->by_path.end()) {
    if (own == nullptr) return nullptr;
    return Broken(place, absl::StrCat("is a DTensor, and ", kItemsMetadataName, " does not have it"));
  }
  for (const ItemTensor::Record& record : metadata_->tensors[at->second].records) {
    const bool has_rank = record.dtensor == nullptr
                              ? std::binary_search(record.ranks.begin(), record.ranks.end(), rank_)
                              : meshes_.PlaceOf(*meshes_.Find(*record.dtensor->mesh), rank_) >= 0;
    if (!has_rank) continue;
    ++seen_[at->second];
    if (own == nullptr) return &record;
    const bool is_equal = record.dtensor != nullptr && record.dtensor->shape == own->shape &&
                          record.dtensor->dtype == own->dtype && record.dtensor->placements == own->placements &&
                          meshes_.Find(*record.dtensor->mesh) == meshes_.Find(*own->mesh);
    if (is_equal) return &record;
    return Broken(place, absl::StrCat("is ", own->shape.ToString(), " as ", own->ToString(), ", which is not what ",
                                      kItemsMetadataName, " says"));
  }
  return Broken(place, absl::StrCat("is in a file of rank ", rank_, ", and ", kItemsMetadataName,
                                    " says that other ranks have it"));
}

// The first rank that has the tensor decides its shape, dtype and division; Merge compares the others with them.
absl::StatusOr<int> ItemTensors::Add(const ItemPlace& place, int tensor) {
  FSDP_ASSIGN_OR_RETURN(const Division division, DivisionOf(place, tensor));
  const auto number = static_cast<int>(items_.tensors.size());
  JoinedItem& joined = items_.tensors.emplace_back();
  joined.dtype = division.dtype;
  joined.shape = division.shape;
  joined.dtensor = division.dtensor;
  names_.push_back(place.name);
  // One slot for each place of the mesh. Replicas share the slot of the first copy, since only one is read.
  if (joined.dtensor != nullptr) {
    joined.parts.resize(joined.dtensor->mesh->ranks.size());
    if (division.place >= 0) joined.parts[FirstCopyOf(*joined.dtensor, division.place)] = {file_number_, tensor};
  } else if (division.shards != nullptr) {
    AddShards(place, *division.shards, tensor, number);
  } else {
    joined.parts.push_back({file_number_, tensor});
  }
  joined.identity = IdentityOf(number, tensor);
  joined.wrapper = file_->wrapper(tensor);
  return number;
}

// Tied weights are two names of one view of one storage.
int ItemTensors::IdentityOf(int number, int tensor) {
  const LocalTensor local = file_->tensor(tensor);
  if (local.shape.numel() == 0) return -1;
  View view = {local.storage,
               local.offset,
               local.dtype,
               {local.shape.dims().begin(), local.shape.dims().end()},
               {local.strides.begin(), local.strides.end()}};
  const int first = views_.try_emplace(std::move(view), number).first->second;
  return items_.tensors[first].shape == items_.tensors[number].shape ? first : number;
}

// False if the tensor is each rank's own and differs, as generators' states do: then the caller keeps both.
absl::StatusOr<bool> ItemTensors::Merge(const ItemPlace& place, int tensor, int number) {
  FSDP_ASSIGN_OR_RETURN(const Division division, DivisionOf(place, tensor));
  JoinedItem& joined = items_.tensors[number];
  if (division.dtype != joined.dtype || division.shape != joined.shape ||
      (division.dtensor != nullptr) != (joined.dtensor != nullptr) ||
      (division.shards != nullptr) != joined.has_shards) {
    return Broken(place, absl::StrCat("is ", std::string(DTypeName(division.dtype)), " ", division.shape.ToString(),
                                      ", but ", std::string(DTypeName(joined.dtype)), " ", joined.shape.ToString(),
                                      " or divided otherwise in the files of the ranks before: they are not of one "
                                      "save, or stages of a pipeline count their parameters by equal numbers"));
  }
  const LocalPart part = {file_number_, tensor};
  if (division.shards != nullptr) {
    AddShards(place, *division.shards, tensor, number);
    return true;
  }
  if (division.dtensor != nullptr) {
    FSDP_RETURN_IF_ERROR(MergePart(place, division, part, joined));
    return true;
  }
  if (IsGeneratorState(place, division.dtype, division.shape)) {
    FSDP_ASSIGN_OR_RETURN(const std::optional<bool> are_equal, AreEqual(joined.parts[0], part));
    return are_equal.value_or(false);
  }
  FSDP_RETURN_IF_ERROR(Compare(place, joined.parts[0], part));
  return true;
}

// A part that is already there must be an equal copy. Parts over another mesh, as with tied weights of two stages of a
// pipeline, are further copies of the whole.
absl::Status ItemTensors::MergePart(const ItemPlace& place, const Division& division, const LocalPart& part,
                                    JoinedItem& joined) {
  if (division.place < 0) return absl::OkStatus();
  const bool is_alike = joined.dtensor->placements == division.dtensor->placements &&
                        joined.dtensor->mesh->shape == division.dtensor->mesh->shape;
  LocalPart none;
  LocalPart& known = is_alike ? joined.parts[FirstCopyOf(*joined.dtensor, division.place)] : none;
  if (known.file >= 0) return Compare(place, known, part);
  if (joined.dtensor->mesh == division.dtensor->mesh) {
    known = part;
  } else {
    uncompared_.Count(Quote(place.name));  // a copy over other ranks, with other parts
  }
  return absl::OkStatus();
}

// Copies may drift apart, and a buffer may be each rank's own: the first is read, and a note says so. Files that only
// their names bring together must be equal.
absl::Status ItemTensors::Compare(const ItemPlace& place, const LocalPart& known, const LocalPart& part) {
  FSDP_ASSIGN_OR_RETURN(const std::optional<bool> are_equal, AreEqual(known, part));
  if (!are_equal) uncompared_.Count(Quote(place.name));
  if (are_equal.value_or(true)) return absl::OkStatus();
  const std::string& first = items_.files[known.file]->name();
  if (!is_strict_) {
    different_.Count(absl::StrCat(Quote(place.name), " of ", file_->name(), " and ", first));
    return absl::OkStatus();
  }
  return Broken(place, absl::StrCat("differs from the copy of ", first,
                                    ", and nothing says how they are joined: give one of the files"));
}

// Boxes of different ranks must not overlap; equal ones are replicas.
void ItemTensors::AddShards(const ItemPlace& place, const DefaultShards& shards, int tensor, int number) {
  JoinedItem& joined = items_.tensors[number];
  joined.has_shards = true;
  std::map<BoxKey, bool>& boxes = boxes_[number];
  for (const DefaultShards::Shard& shard : shards.shards) {
    const bool is_new = boxes.try_emplace({shard.box.start, shard.box.count}, true).second;
    if (is_new) {
      joined.shards.push_back({shard.box, shard.local_start, {file_number_, tensor}});
    } else if (std::find(shard.box.count.begin(), shard.box.count.end(), 0) == shard.box.count.end()) {
      uncompared_.Count(Quote(place.name));
    }
  }
}

absl::StatusOr<std::optional<bool>> ItemTensors::AreEqual(const LocalPart& a, const LocalPart& b) {
  const ItemFile& file_of_a = *items_.files[a.file];
  const ItemFile& file_of_b = *items_.files[b.file];
  const int64_t nbytes = file_of_a.shape(a.tensor).numel() * SizeOf(file_of_a.dtype(a.tensor));
  FSDP_ASSIGN_OR_RETURN(const std::optional<bool> are_equal,
                        AreCopies(pool_, file_of_a, a.tensor, file_of_b, b.tensor, budget_.max_bytes()));
  if (nbytes <= budget_.max_bytes()) budget_.Take(nbytes);
  return are_equal;
}

int ItemTensors::FirstRankOf(int number) const {
  const std::string& name = items_.files[items_.tensors[number].parts[0].file]->name();
  const auto at = std::find_if(item_.files.begin(), item_.files.end(),
                               [&](const auto& layout) { return layout && layout->file == name; });
  return static_cast<int>(at - item_.files.begin());
}

absl::Status ItemTensors::Finish() {
  for (size_t i = first_; i < items_.tensors.size(); ++i) FSDP_RETURN_IF_ERROR(CheckWhole(static_cast<int>(i)));
  for (size_t i = 0; i < seen_.size(); ++i) FSDP_RETURN_IF_ERROR(CheckSeen(metadata_->tensors[i], seen_[i]));
  for (std::string note : {uncompared_.ToString("not compared: the first rank's are read"),
                           different_.ToString("differ between ranks: the first rank's are read")}) {
    if (!note.empty()) items_.notes.push_back(std::move(note));
  }
  return absl::OkStatus();
}

// Called when all files are read: each part that is needed to make the tensor whole is there, or the missing rank is
// named.
absl::Status ItemTensors::CheckWhole(int number) const {
  const JoinedItem& joined = items_.tensors[number];
  const std::string& name = names_[number - first_];
  if (joined.has_shards) {
    std::vector<JoinedPiece> pieces;
    for (const JoinedItem::Shard& shard : joined.shards) pieces.push_back({shard.box, 0, 0});
    return Annotate(CheckPieces(joined.shape, pieces), Quote(name));
  }
  for (size_t place = 0; joined.dtensor != nullptr && place < joined.parts.size(); ++place) {
    const auto at = static_cast<int64_t>(place);
    if (joined.parts[place].file >= 0 || !IsFirstCopy(*joined.dtensor, at)) continue;
    const auto rank = static_cast<size_t>(joined.dtensor->mesh->ranks[place]);
    const bool has_file = rank < item_.files.size() && item_.files[rank].has_value();
    return absl::DataLossError(absl::StrCat(
        Quote(name), ", which is ", joined.dtensor->ToString(), ", is without the part of rank ", rank, ": ",
        has_file ? absl::StrCat(item_.files[rank]->file, " does not have it") : "the file of that rank is missing"));
  }
  return absl::OkStatus();
}

// metadata.pkl says which ranks have the tensor; a file without it is of another save.
absl::Status ItemTensors::CheckSeen(const ItemTensor& tensor, int64_t seen) const {
  int64_t wanted = 0;
  for (const ItemTensor::Record& record : tensor.records) wanted += record.rank_count();
  if (seen == wanted) return absl::OkStatus();
  std::vector<absl::string_view> names = {item_.name};
  for (const ItemPathElement& element : tensor.path) names.push_back(element.name);
  return absl::DataLossError(absl::StrCat(Quote(absl::StrJoin(names, ".")), " is in the files of ", seen,
                                          " ranks, but ", kItemsMetadataName, " says that ", wanted, " have it"));
}

absl::Status ItemTensors::Broken(const ItemPlace& place, const std::string& what) const {
  return absl::DataLossError(absl::StrCat(Quote(place.name), " of ", file_->name(), " ", what));
}

absl::Status ItemTensors::Unlike(const ItemPlace& place, const Shape& local, const Shape& whole,
                                 const std::string& how) const {
  return Broken(place,
                absl::StrCat("of shape ", local.ToString(), " is not the part of ", whole.ToString(),
                             how.empty() ? "" : absl::StrCat(" as ", how), " that ", kItemsMetadataName, " says"));
}

}  // namespace fsdp
