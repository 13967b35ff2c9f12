// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/dtensor_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tensor.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int64_t kMaxMembers = 64;                // of the state of an object
constexpr int64_t kMaxCounted = int64_t{1} << 24;  // ranks in all meshes of a pickle
constexpr size_t kMaxDistinct = 64;                // meshes that are compared with a new one

absl::Status Broken(PickleValue value, const std::string& what) {
  return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

absl::Status Unsupported(PickleValue value, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

// The status with the byte of `value` before it.
absl::Status At(PickleValue value, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("byte ", value.place(), " of the pickle: ", std::string(status.message())));
}

// True for a call of the class `name` in any module: only modules of the allow-list get here.
bool IsObject(PickleValue value, std::string_view name) {
  return value.is(Kind::kCall) && value.callee().is(Kind::kGlobal) && value.callee().global_name() == name;
}

// The dict in a state: the dict itself, or the last of (None, {...}), which objects with slots have.
std::optional<PickleValue> DictOf(PickleValue state) {
  if (state.is(Kind::kTuple) && state.size() == 2) state = state.at(1);
  if (!state.is(Kind::kDict) || state.size() > kMaxMembers) return std::nullopt;
  return state;
}

// The member `name` of the state of `object`; nullopt without one, or if it is None.
std::optional<PickleValue> Member(PickleValue object, std::string_view name) {
  if (!object.is(Kind::kCall) || !object.has_state()) return std::nullopt;
  const std::optional<PickleValue> state = DictOf(object.state());
  for (int64_t i = 0; state && i < state->size(); ++i) {
    const auto [key, value] = state->member(i);
    if (key.is_string(name)) return value.is(Kind::kNone) ? std::nullopt : std::make_optional(value);
  }
  return std::nullopt;
}

absl::StatusOr<int64_t> IntegerBelow(PickleValue value, int64_t limit, const char* what) {
  if (value.is(Kind::kInt) && value.integer() >= 0 && value.integer() < limit) return value.integer();
  return Broken(value, absl::StrCat(what, " is not an integer from 0 to ", limit - 1));
}

// An int, or the elements of a tuple of ints: a dimension of a mesh may be flattened from several.
absl::StatusOr<std::vector<int64_t>> IntegersBelow(PickleValue value, int64_t limit, const char* what) {
  std::vector<int64_t> integers;
  if (!value.is_sequence()) {
    FSDP_ASSIGN_OR_RETURN(integers.emplace_back(), IntegerBelow(value, limit, what));
    return integers;
  }
  if (value.size() > kMaxMembers) return Broken(value, absl::StrCat(what, " has ", value.size(), " numbers"));
  for (int64_t i = 0; i < value.size(); ++i) {
    FSDP_ASSIGN_OR_RETURN(integers.emplace_back(), IntegerBelow(value.at(i), limit, what));
  }
  return integers;
}

// Dimension by dimension, as sizes and the steps between ranks in the list of all ranks.
struct MeshLayout {
  std::vector<std::vector<int64_t>> sizes;
  std::vector<std::vector<int64_t>> strides;
};

absl::StatusOr<MeshLayout> ReadLayout(PickleValue value) {
  const std::optional<PickleValue> axes = Member(value, "axes");
  if (!axes || !axes->is_sequence() || axes->size() > kMaxMembers) return Broken(value, "a mesh without its axes");
  MeshLayout layout;
  for (int64_t i = 0; i < axes->size(); ++i) {
    const std::optional<PickleValue> shape = Member(axes->at(i), "shape");
    const std::optional<PickleValue> stride = Member(axes->at(i), "stride");
    if (!shape || !stride) return Broken(axes->at(i), "an axis of a mesh without shape and stride");
    FSDP_ASSIGN_OR_RETURN(layout.sizes.emplace_back(), IntegersBelow(*shape, kMaxMeshRanks + 1, "a size of a mesh"));
    FSDP_ASSIGN_OR_RETURN(layout.strides.emplace_back(),
                          IntegersBelow(*stride, kMaxMeshRanks + 1, "a stride of a mesh"));
    if (layout.sizes.back().size() != layout.strides.back().size()) {
      return Broken(axes->at(i), "an axis of a mesh with more sizes than strides");
    }
  }
  return layout;
}

// The offsets in the list of ranks of all places of the mesh, row-major, from the first place. nullopt for sizes
// beyond kMaxMeshRanks.
std::optional<std::vector<int64_t>> OffsetsOf(const MeshLayout& layout) {
  std::vector<int64_t> offsets = {0};
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    for (size_t i = 0; i < layout.sizes[d].size(); ++i) {
      const int64_t size = layout.sizes[d][i];
      if (size < 1 || static_cast<int64_t>(offsets.size()) > kMaxMeshRanks / size) return std::nullopt;
      std::vector<int64_t> next;
      next.reserve(offsets.size() * size);
      for (const int64_t offset : offsets) {
        for (int64_t c = 0; c < size; ++c) next.push_back(offset + c * layout.strides[d][i]);
      }
      offsets = std::move(next);
    }
  }
  return offsets;
}

// Where `rank` is in the list, usually at its own number.
std::optional<int64_t> IndexOf(PickleValue ranks, int64_t rank) {
  const auto is_at = [&](int64_t i) { return ranks.at(i).is(Kind::kInt) && ranks.at(i).integer() == rank; };
  if (rank < ranks.size() && is_at(rank)) return rank;
  for (int64_t i = 0; i < ranks.size(); ++i) {
    if (is_at(i)) return i;
  }
  return std::nullopt;
}

absl::StatusOr<DTensorPlacement> ReadPlacement(PickleValue value) {
  DTensorPlacement placement;
  if (IsObject(value, "Replicate")) return placement;
  const bool is_strided = IsObject(value, "_StridedShard");
  if (!is_strided && !IsObject(value, "Shard")) {
    const bool is_sum = IsObject(value, "Partial") || IsObject(value, "_Partial") || IsObject(value, "_MaskPartial");
    if (is_sum) return Unsupported(value, "a DTensor that is a sum over ranks which was not reduced: Partial");
    return Unsupported(value, "a DTensor with a placement that is not read");
  }
  placement.kind = is_strided ? DTensorPlacement::Kind::kStridedShard : DTensorPlacement::Kind::kShard;
  std::optional<PickleValue> dim = Member(value, "dim");
  std::optional<PickleValue> factor = Member(value, "split_factor");
  const PickleValue arguments = value.arguments();
  if (!dim && arguments.size() > 0) dim = arguments.at(0);
  if (!factor && arguments.size() > 1) factor = arguments.at(1);
  if (!dim || (is_strided && !factor)) return Broken(value, "a shard without its dimension");
  FSDP_ASSIGN_OR_RETURN(const int64_t number, IntegerBelow(*dim, kMaxTorchRank, "the dimension of a shard"));
  placement.dim = static_cast<int32_t>(number);
  if (is_strided) {
    FSDP_ASSIGN_OR_RETURN(placement.split_factor, IntegerBelow(*factor, kMaxMeshRanks + 1, "a split_factor"));
  }
  return placement;
}

// Placements imply an order of cutting (dtensor.h); torch can record another one, which no other file repeats.
absl::Status CheckShardOrder(PickleValue spec) {
  const std::optional<PickleValue> order = Member(spec, "shard_order");
  if (!order) return absl::OkStatus();
  if (!order->is_sequence() || order->size() > kMaxMembers) return Broken(*order, "a shard_order that is no tuple");
  for (int64_t i = 0; i < order->size(); ++i) {
    const PickleValue entry = order->at(i);
    if (!IsObject(entry, "ShardOrderEntry") || entry.arguments().size() != 2) {
      return Broken(entry, "an entry of shard_order that is none");
    }
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> dims,
                          IntegersBelow(entry.arguments().at(1), kMaxMembers, "a dimension of a mesh"));
    if (std::is_sorted(dims.begin(), dims.end())) continue;
    return Unsupported(entry,
                       "a DTensor whose shard_order is not the order of the mesh's dimensions, which is not read");
  }
  return absl::OkStatus();
}

absl::StatusOr<DType> ReadDType(PickleValue value) {
  if (!value.is(Kind::kGlobal)) return Broken(value, "a DTensor's dtype is not a dtype");
  const absl::StatusOr<DType> dtype = DTypeOfGlobal(value.name());
  return dtype.ok() ? dtype : At(value, dtype.status());
}

absl::StatusOr<Shape> ReadShape(PickleValue value) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReadSizes(value));
  const absl::StatusOr<Shape> shape = Shape::Create(sizes);
  return shape.ok() ? shape : Broken(value, std::string(shape.status().message()));
}

}  // namespace

// DTensor pickles itself as a wrapper subclass: a rebuild function, its arguments (dtype, sizes, ...), and a state with
// the local tensor and the spec. Nothing of it is called; the parts are read as data.
bool IsDTensor(PickleValue value) {
  return value.is_call("torch._tensor._rebuild_from_type_v2") && value.arguments().size() == 4 &&
         value.arguments().at(0).is_global("torch._utils._rebuild_wrapper_subclass") &&
         value.arguments().at(1).is(Kind::kGlobal) && value.arguments().at(1).global_name() == "DTensor";
}

// The size is stated twice, in the wrapper's arguments and in the spec: both must agree.
absl::StatusOr<DTensorValue> DTensorReader::Read(PickleValue value, const ShapeOf& shape_of) {
  const PickleValue whole = value.arguments().at(2);
  const std::optional<PickleValue> state = DictOf(value.arguments().at(3));
  std::optional<PickleValue> local;
  std::optional<PickleValue> spec;
  for (int64_t i = 0; state && i < state->size(); ++i) {
    const auto [key, member] = state->member(i);
    if (key.is_string("_local_tensor")) local = member;
    if (key.is_string("_spec")) spec = member;
  }
  if (!whole.is(Kind::kTuple) || whole.size() < 3 || !local || !spec || !IsObject(*spec, "DTensorSpec")) {
    return Broken(value, "a DTensor without its sizes, its local tensor or its spec");
  }
  if (!local->is(Kind::kObject) && (!IsTorchTensor(*local) || IsDTensor(UnwrapTorchTensor(*local)))) {
    return Unsupported(*local, "a DTensor whose local tensor is no plain tensor");
  }
  DTensorValue read = {{}, *local};
  FSDP_ASSIGN_OR_RETURN(read.tensor.dtype, ReadDType(whole.at(1)));
  FSDP_ASSIGN_OR_RETURN(read.tensor.shape, ReadShape(whole.at(2)));
  if (const std::optional<PickleValue> meta = Member(*spec, "tensor_meta")) {
    const bool has_form = IsObject(*meta, "TensorMeta") && meta->arguments().size() == 3;
    if (!has_form) return Broken(*meta, "a tensor_meta that is none");
    FSDP_ASSIGN_OR_RETURN(const Shape shape, ReadShape(meta->arguments().at(0)));
    FSDP_ASSIGN_OR_RETURN(const DType dtype, ReadDType(meta->arguments().at(2)));
    if (shape != read.tensor.shape || dtype != read.tensor.dtype) {
      return Broken(*meta, absl::StrCat("a DTensor of shape ", read.tensor.shape.ToString(),
                                        " whose tensor_meta has the shape ", shape.ToString(), " or another dtype"));
    }
  }
  const std::optional<PickleValue> mesh = Member(*spec, "mesh");
  const std::optional<PickleValue> placements = Member(*spec, "placements");
  if (!mesh || !placements || !placements->is_sequence() || placements->size() > kMaxMembers) {
    return Broken(*spec, "a DTensorSpec without a mesh or placements");
  }
  FSDP_ASSIGN_OR_RETURN(read.tensor.mesh, MeshOf(*mesh, shape_of));
  for (int64_t i = 0; i < placements->size(); ++i) {
    FSDP_ASSIGN_OR_RETURN(read.tensor.placements.emplace_back(), ReadPlacement(placements->at(i)));
  }
  FSDP_RETURN_IF_ERROR(CheckShardOrder(*spec));
  const absl::Status checked = CheckDTensor(read.tensor);
  if (!checked.ok()) return At(*spec, checked);
  return read;
}

absl::Status DTensorReader::Count(PickleValue value, int64_t ranks) {
  counted_ += ranks;
  if (counted_ <= kMaxCounted) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("byte ", value.place(), " of the pickle: its meshes have more than ", kMaxCounted, " ranks in all"));
}

// By the object's number in the pickle first, then by value.
absl::StatusOr<std::shared_ptr<const StoredMesh>> DTensorReader::MeshOf(PickleValue value, const ShapeOf& shape_of) {
  const auto known = meshes_.find(value.id());
  if (known != meshes_.end()) return known->second;
  auto mesh = std::make_shared<StoredMesh>();
  FSDP_RETURN_IF_ERROR(ReadMesh(value, shape_of, *mesh));
  const absl::Status checked = CheckMesh(*mesh);
  if (!checked.ok()) return At(value, checked);
  // Each module of a model may have a mesh of its own, and most are equal.
  for (const std::shared_ptr<const StoredMesh>& other : distinct_) {
    FSDP_RETURN_IF_ERROR(Count(value, 1));
    if (other->shape == mesh->shape && other->names == mesh->names && other->place == mesh->place &&
        other->ranks == mesh->ranks) {
      return meshes_[value.id()] = other;
    }
  }
  if (distinct_.size() < kMaxDistinct) distinct_.push_back(mesh);
  return meshes_[value.id()] = std::move(mesh);
}

// Two forms of a DeviceMesh: with _layout and a list of all ranks (2.9 and later), or with the tensor of ranks. A
// submesh has the list of the whole mesh, and where it is in it follows from the rank that pickled it.
absl::Status DTensorReader::ReadMesh(PickleValue value, const ShapeOf& shape_of, StoredMesh& mesh) {
  if (!IsObject(value, "DeviceMesh")) return Broken(value, "a mesh that is none");
  MeshLayout layout;
  std::optional<PickleValue> ranks = Member(value, "_flatten_rank_map");
  const std::optional<PickleValue> axes = Member(value, "_layout");
  if (ranks && axes) {
    FSDP_ASSIGN_OR_RETURN(layout, ReadLayout(*axes));
  } else {
    ranks = Member(value, "_flatten_mesh_list");
    const std::optional<PickleValue> tensor = Member(value, "mesh");
    if (!ranks || !tensor) return Unsupported(value, "a DeviceMesh in a form that is not read");
    FSDP_ASSIGN_OR_RETURN(const Shape shape, shape_of(*tensor));
    int64_t stride = shape.numel();
    for (const int64_t size : shape.dims()) {
      if (size < 1) return Broken(value, "a mesh without ranks");
      stride /= size;
      layout.sizes.push_back({size});
      layout.strides.push_back({stride});
    }
  }
  if (!ranks->is_sequence() || ranks->size() == 0) return Broken(value, "a mesh without a list of ranks");
  const std::optional<std::vector<int64_t>> offsets = OffsetsOf(layout);
  if (!offsets) return Broken(value, absl::StrCat("a mesh of no or more than ", kMaxMeshRanks, " ranks"));
  FSDP_RETURN_IF_ERROR(Count(value, static_cast<int64_t>(offsets->size())));
  for (const std::vector<int64_t>& sizes : layout.sizes) {
    int64_t size = 1;
    for (const int64_t part : sizes) size *= part;
    mesh.shape.push_back(size);
  }

  // The coordinate says where in the mesh the rank is, and the rank which of the meshes in the list it is.
  std::optional<int64_t> place;
  if (const std::optional<PickleValue> coordinate = Member(value, "_coordinate_on_dim")) {
    FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> at, IntegersBelow(*coordinate, kMaxMeshRanks, "a coordinate"));
    if (at.size() != mesh.shape.size()) return Broken(*coordinate, "a coordinate of another number of dimensions");
    place = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      if (at[d] >= mesh.shape[d]) return Broken(*coordinate, "a coordinate outside of its mesh");
      place = *place * mesh.shape[d] + at[d];
    }
  }
  int64_t first = 0;
  const std::optional<PickleValue> rank = Member(value, "_rank");
  if (place && rank) {
    FSDP_ASSIGN_OR_RETURN(const int64_t number, IntegerBelow(*rank, kMaxMeshRanks, "a rank"));
    const std::optional<int64_t> index = IndexOf(*ranks, number);
    if (!index || *index != number) FSDP_RETURN_IF_ERROR(Count(value, ranks->size()));
    if (!index) return Broken(*rank, absl::StrCat("the rank ", number, " is not in its mesh"));
    first = *index - (*offsets)[*place];
  }
  if (first < 0 || first + offsets->back() >= ranks->size()) {
    return Broken(value, "a mesh that reaches beyond its list of ranks");
  }
  for (const int64_t offset : *offsets) {
    if (first + offset >= ranks->size()) return Broken(value, "a mesh that reaches beyond its list of ranks");
    FSDP_ASSIGN_OR_RETURN(const int64_t number, IntegerBelow(ranks->at(first + offset), kMaxMeshRanks, "a rank"));
    mesh.ranks.push_back(static_cast<int32_t>(number));
  }
  mesh.place = place.value_or(-1);
  if (const std::optional<PickleValue> names = Member(value, "_mesh_dim_names"); names && names->is_sequence()) {
    if (names->size() > kMaxMembers) return Broken(*names, "a mesh with too many names");
    for (int64_t i = 0; i < names->size(); ++i) {
      if (!names->at(i).is(Kind::kString)) return Broken(names->at(i), "a name of a mesh that is no text");
      mesh.names.emplace_back(names->at(i).text());
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
