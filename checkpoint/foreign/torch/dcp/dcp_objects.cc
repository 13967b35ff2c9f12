// SPDX-License-Identifier: Apache-2.0
//
// RunMetadata are looked up by name, so that fields which newer versions of torch add do not matter. Classes are
// recognised only by their own names, because their modules have moved between versions of torch.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_objects.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_leaf.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tensor.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

bool IsObject(PickleValue value, std::string_view class_name) {
  return value.is(PickleKind::kCall) && value.callee().global_name() == class_name;
}

// A rank's order to write one chunk or value, or a part of it: repeats what the other objects say.
bool IsPlanItem(PickleValue value) {
  return IsObject(value, "WriteItem") || IsObject(value, "TensorWriteData") || IsObject(value, "BytesIOWriteData");
}

absl::StatusOr<PickleValue> Attribute(PickleValue object, PickleValue state, std::string_view name) {
  if (const auto value = FindAttribute(state, name)) return *value;
  return BrokenObject(object, absl::StrCat("an object without ", Quote(name)));
}

absl::Status CheckText(PickleValue value) {
  if (value.is(PickleKind::kString)) return absl::OkStatus();
  return BrokenObject(value, absl::StrCat(std::string(PickleKindName(value.kind())), " for a name"));
}

absl::StatusOr<int64_t> Position(PickleValue value) {
  if (value.is(PickleKind::kInt) && value.integer() >= 0) return value.integer();
  return BrokenObject(value, "a position in a file that is not an integer from 0");
}

uint32_t PlaceOf(PickleValue value) { return static_cast<uint32_t>(value.place()); }

template <typename T>
int64_t DequeBytes(const std::deque<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T)) * 17 / 16;
}

}  // namespace

std::optional<PickleValue> FindAttribute(PickleValue state, std::string_view name) {
  if (!state.is(PickleKind::kDict)) return std::nullopt;
  for (int64_t i = 0; i < state.size(); ++i) {
    const auto [key, value] = state.member(i);
    if (key.is_string(name)) return value;
  }
  return std::nullopt;
}

absl::Status BrokenObject(PickleValue value, const std::string& what) {
  return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

bool DcpObjects::IsTensor(PickleValue value) {
  return Find(Kind::kTensor, value).has_value() || IsObject(value, "TensorStorageMetadata");
}

bool DcpObjects::IsBytes(PickleValue value) { return IsObject(value, "BytesStorageMetadata"); }

// The inverse of Added: kind in the low bits, row above them.
std::optional<uint32_t> DcpObjects::Find(Kind kind, PickleValue value) {
  if (!value.is(PickleKind::kObject)) return std::nullopt;
  const uint32_t object = value.object();
  if ((object & ((1 << kKindBits) - 1)) != static_cast<uint32_t>(kind)) return std::nullopt;
  return object >> kKindBits;
}

template <typename Row>
std::optional<uint32_t> DcpObjects::Added(Kind kind, const absl::StatusOr<Row>& row, std::deque<Row>& table) {
  // A number that does not fit above the kind's bits is refused; the object then stays a value.
  if (!row.ok() || table.size() >= kMaxObjects >> kKindBits) return std::nullopt;
  table.push_back(*row);
  return static_cast<uint32_t>(table.size() - 1) << kKindBits | static_cast<uint32_t>(kind);
}

std::optional<uint32_t> DcpObjects::Take(PickleValue call) {
  // The only object without a state: all others are complete at BUILD.
  if (!call.is_call("torch.Size")) return std::nullopt;
  const absl::StatusOr<uint32_t> list = ReadSizeList(call);
  if (!list.ok() || *list >= kMaxObjects >> kKindBits) return std::nullopt;
  return *list << kKindBits | static_cast<uint32_t>(Kind::kSizes);
}

// Objects are taken bottom-up: when a tensor's BUILD comes, its chunks and sizes are objects already.
std::optional<uint32_t> DcpObjects::TakeBuilt(PickleValue call, PickleValue state) {
  if (IsObject(call, "ChunkStorageMetadata")) return Added(Kind::kChunk, MakeChunk(call, state), chunks_);
  if (IsObject(call, "MetadataIndex")) return Added(Kind::kKey, MakeKey(call, state), keys_);
  // An empty name, here and below: the object does not know its tensor. Errors are dropped, and the Read function
  // repeats them with the name.
  if (IsObject(call, "TensorProperties")) return Added(Kind::kProperties, MakeProperties("", call, state), properties_);
  if (IsObject(call, "TensorStorageMetadata"))
    return Added(Kind::kTensor, MakeTensor("", call, state, nullptr), tensors_);
  if (IsPlanItem(call)) return static_cast<uint32_t>(Kind::kPlanItem);
  if (!IsObject(call, "_StorageInfo") || slice_places_.size() >= kMaxObjects >> kKindBits) return std::nullopt;
  const absl::StatusOr<uint32_t> place = MakePlace("", call, state);
  if (!place.ok()) return std::nullopt;
  return *place << kKindBits | static_cast<uint32_t>(Kind::kPlace);
}

int64_t DcpObjects::place(uint32_t object) const {
  const uint32_t row = object >> kKindBits;
  switch (static_cast<Kind>(object & ((1 << kKindBits) - 1))) {
    case Kind::kSizes:
      return sizes_.note(row);
    case Kind::kProperties:
      return properties_[row].place;
    case Kind::kChunk:
      return chunks_[row].place;
    case Kind::kKey:
      return keys_[row].name;
    case Kind::kPlace:
      return slice_places_[row];
    case Kind::kTensor:
      return tensors_[row].place;
    case Kind::kPlanItem:
      return 0;
  }
  return 0;
}

int64_t DcpObjects::memory() const {
  return sizes_.memory() + slices_.memory() + DequeBytes(slice_places_) + DequeBytes(properties_) +
         DequeBytes(chunks_) + DequeBytes(keys_) + DequeBytes(tensors_);
}

// Decoded on each access, so that a key has 4 bytes for it and not a view of 16.
std::string_view DcpObjects::Name(const Key& key) const { return LeafAt(bytes_, key.name).text; }

absl::StatusOr<PickleValue> DcpObjects::StateOf(PickleValue object) {
  if (object.has_state()) return object.state();
  return BrokenObject(object, absl::StrCat(std::string(PickleKindName(object.kind())), " without attributes"));
}

absl::StatusOr<uint32_t> DcpObjects::ReadSizeList(PickleValue value) {
  if (const auto list = Find(Kind::kSizes, value)) return *list;
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReadSizes(value));
  return sizes_.Add(sizes, value.place());
}

absl::StatusOr<DcpObjects::Chunk> DcpObjects::ReadChunk(PickleValue value) {
  if (const auto row = Find(Kind::kChunk, value)) return chunks_[*row];
  FSDP_ASSIGN_OR_RETURN(const PickleValue state, StateOf(value));
  return MakeChunk(value, state);
}

absl::StatusOr<DcpObjects::Chunk> DcpObjects::MakeChunk(PickleValue object, PickleValue state) {
  Chunk chunk = {.place = PlaceOf(object)};
  FSDP_ASSIGN_OR_RETURN(const PickleValue offsets, Attribute(object, state, "offsets"));
  FSDP_ASSIGN_OR_RETURN(chunk.start, ReadSizeList(offsets));
  FSDP_ASSIGN_OR_RETURN(const PickleValue counts, Attribute(object, state, "sizes"));
  FSDP_ASSIGN_OR_RETURN(chunk.count, ReadSizeList(counts));
  return chunk;
}

absl::StatusOr<DcpObjects::Key> DcpObjects::ReadKey(PickleValue value) {
  if (const auto row = Find(Kind::kKey, value)) return keys_[*row];
  FSDP_ASSIGN_OR_RETURN(const PickleValue state, StateOf(value));
  return MakeKey(value, state);
}

absl::StatusOr<DcpObjects::Key> DcpObjects::MakeKey(PickleValue object, PickleValue state) {
  Key key;
  FSDP_ASSIGN_OR_RETURN(const PickleValue fqn, Attribute(object, state, "fqn"));
  FSDP_RETURN_IF_ERROR(CheckText(fqn));
  key.name = fqn.id();  // a string is a leaf, whose id is its offset
  const auto offset = FindAttribute(state, "offset");
  // The key of a plain value has no offset, or None.
  if (offset && !offset->is(PickleKind::kNone)) {
    FSDP_ASSIGN_OR_RETURN(key.offsets, ReadSizeList(*offset));
  }
  return key;
}

absl::StatusOr<uint32_t> DcpObjects::ReadPlace(std::string_view name, PickleValue value) {
  if (const auto row = Find(Kind::kPlace, value)) return *row;
  FSDP_ASSIGN_OR_RETURN(const PickleValue state, StateOf(value));
  return MakePlace(name, value, state);
}

// The path is opened below the directory, so it must be a plain name: "../x" is damage or an attack.
absl::StatusOr<uint32_t> DcpObjects::MakePlace(std::string_view name, PickleValue object, PickleValue state) {
  // Refused before the position is used: the bytes there are not a torch archive.
  const auto transforms = FindAttribute(state, "transform_descriptors");
  if (transforms && !(transforms->is(PickleKind::kNone) || (transforms->is_sequence() && transforms->size() == 0))) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quote(std::string(name)),
                     " was transformed when it was saved (compressed, for instance), and that is not read"));
  }
  FSDP_ASSIGN_OR_RETURN(const PickleValue path, Attribute(object, state, "relative_path"));
  FSDP_RETURN_IF_ERROR(CheckText(path));
  const std::string_view file = path.text();
  if (!CheckFileName(std::string(file)).ok()) {
    return absl::DataLossError(absl::StrCat(Quote(std::string(name)), " is placed in ", Quote(std::string(file)),
                                            ", expected a file of the directory"));
  }
  FSDP_ASSIGN_OR_RETURN(const PickleValue from, Attribute(object, state, "offset"));
  FSDP_ASSIGN_OR_RETURN(const int64_t offset, Position(from));
  FSDP_ASSIGN_OR_RETURN(const PickleValue length, Attribute(object, state, "length"));
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, Position(length));
  // end() of a slice must not overflow.
  if (nbytes > std::numeric_limits<int64_t>::max() - offset) {
    return absl::DataLossError(absl::StrCat(Quote(std::string(name)), " is placed in ", Quote(std::string(file)), ", ",
                                            nbytes, " bytes from byte ", offset, " on: no file reaches that far"));
  }
  slice_places_.push_back(PlaceOf(object));
  return slices_.Add(file, offset, nbytes);
}

absl::StatusOr<DType> DcpObjects::ReadDType(std::string_view name, PickleValue value) const {
  if (const auto row = Find(Kind::kProperties, value)) return properties_[*row].dtype;
  FSDP_ASSIGN_OR_RETURN(const PickleValue state, StateOf(value));
  FSDP_ASSIGN_OR_RETURN(const Properties properties, MakeProperties(name, value, state));
  return properties.dtype;
}

// TensorProperties has a __getstate__ that returns a tuple with the dtype first; older versions have a dict of fields.
absl::StatusOr<DcpObjects::Properties> DcpObjects::MakeProperties(std::string_view name, PickleValue object,
                                                                  PickleValue state) {
  std::optional<PickleValue> dtype = FindAttribute(state, "dtype");
  if (state.is(PickleKind::kTuple) && state.size() > 0) dtype = state.at(0);
  if (!dtype || !dtype->is(PickleKind::kGlobal)) {
    return BrokenObject(object, absl::StrCat(Quote(std::string(name)), " has no dtype"));
  }
  const absl::StatusOr<DType> read = DTypeOfGlobal(dtype->name());
  if (read.ok()) return Properties{*read, PlaceOf(object)};
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Quote(std::string(name)), ": ", std::string(read.status().message())));
}

absl::StatusOr<DcpObjects::Tensor> DcpObjects::ReadTensor(std::string_view name, PickleValue value,
                                                          PickleBudget& budget) {
  if (const auto row = Find(Kind::kTensor, value)) return tensors_[*row];
  FSDP_ASSIGN_OR_RETURN(const PickleValue state, StateOf(value));
  return MakeTensor(name, value, state, &budget);
}

// Chunks that were taken consecutively, as a tensor's usually are, need no second row.
absl::StatusOr<DcpObjects::Tensor> DcpObjects::MakeTensor(std::string_view name, PickleValue object, PickleValue state,
                                                          PickleBudget* budget) {
  Tensor tensor = {.place = PlaceOf(object)};
  FSDP_ASSIGN_OR_RETURN(const PickleValue properties, Attribute(object, state, "properties"));
  FSDP_ASSIGN_OR_RETURN(tensor.dtype, ReadDType(name, properties));
  FSDP_ASSIGN_OR_RETURN(const PickleValue size, Attribute(object, state, "size"));
  FSDP_ASSIGN_OR_RETURN(tensor.size, ReadSizeList(size));
  const absl::StatusOr<Shape> shape = Shape::Create(sizes_[tensor.size]);
  if (!shape.ok()) return BrokenObject(size, std::string(shape.status().message()));
  FSDP_ASSIGN_OR_RETURN(const PickleValue chunks, Attribute(object, state, "chunks"));
  if (!chunks.is_sequence()) return BrokenObject(chunks, "chunks that are not a list");
  tensor.chunks = static_cast<uint32_t>(chunks.size());
  std::optional<uint32_t> first = chunks.size() == 0 ? std::optional<uint32_t>(0) : Find(Kind::kChunk, chunks.at(0));
  for (int64_t i = 1; first && i < chunks.size(); ++i) {
    if (Find(Kind::kChunk, chunks.at(i)) != *first + static_cast<uint32_t>(i)) first = std::nullopt;
  }
  tensor.first_chunk = first.value_or(chunks_.size());
  if (first) return tensor;
  // While the pickle is parsed there is no budget, so chunks that would need new rows wait for ReadTensor.
  if (budget == nullptr) return BrokenObject(chunks, "chunks that are not objects");
  for (int64_t i = 0; i < chunks.size(); ++i) {
    FSDP_RETURN_IF_ERROR(budget->Take(chunks.at(i), sizeof(Chunk) + sizeof(int64_t), 0));
    FSDP_ASSIGN_OR_RETURN(const Chunk chunk, ReadChunk(chunks.at(i)));
    chunks_.push_back(chunk);
  }
  return tensor;
}

}  // namespace fsdp
