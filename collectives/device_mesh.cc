// SPDX-License-Identifier: Apache-2.0
//
// The group of a dimension has the ranks that agree in all other coordinates, so these coordinates as one number are
// the color of Split. Ranks first agree that each has valid arguments, then that all have the same: a rank that
// returned early with an error would leave the others blocked in Split.
#include "fsdp/collectives/device_mesh.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::Status CheckMesh(const ProcessGroup& group, const std::vector<int>& sizes,
                       const std::vector<std::string>& names) {
  if (sizes.empty()) return absl::InvalidArgumentError("device mesh: no dimensions; expected at least one");
  if (names.size() != sizes.size() || std::set<std::string>(names.begin(), names.end()).size() != names.size() ||
      std::set<std::string>(names.begin(), names.end()).count("") != 0) {
    return absl::InvalidArgumentError(absl::StrCat("device mesh: dimension names [", absl::StrJoin(names, ", "),
                                                   "]; expected ", sizes.size(), " distinct names"));
  }
  int64_t ranks = 1;
  bool overflows = false;  // a product that wraps could be the group's size
  for (const int size : sizes) {
    if (size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("device mesh: sizes [", absl::StrJoin(sizes, ", "),
                                                     "] have a dimension of size ", size, ": expected at least 1"));
    }
    overflows = overflows || __builtin_mul_overflow(ranks, size, &ranks);
  }
  // Every coordinate is one rank of the group; a partial mesh would leave ranks without a place.
  if (!overflows && ranks == group.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("device mesh: sizes [", absl::StrJoin(sizes, ", "), "] have ",
                                                 overflows ? "2^63 or more" : absl::StrCat(ranks),
                                                 " ranks, the group has ", group.size()));
}

// Compares the meshes as texts: equal texts mean equal sizes and names.
absl::Status CheckRanksAgree(ProcessGroup& group, const std::string& mine) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.AllGatherObject(mine));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("device mesh: rank 0 asks for ", all[0], ", rank ", rank, " for ", all[rank]));
  }
  return absl::OkStatus();
}

std::vector<int> CoordinateOf(int rank, const std::vector<int>& sizes) {
  // The last dimension varies fastest (row-major), so it is the remainder of the first division.
  std::vector<int> coordinate(sizes.size());
  for (size_t dim = sizes.size(); dim-- > 0; rank /= sizes[dim]) coordinate[dim] = rank % sizes[dim];
  return coordinate;
}

// A coordinate as two numbers: one for the dimensions `along`, one for all others, each counted row-major.
struct Place {
  int inside = 0;
  int outside = 0;
};

Place PlaceAlong(const std::vector<int>& along, const std::vector<int>& sizes, const std::vector<int>& coordinate) {
  Place place;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool is_along = std::count(along.begin(), along.end(), static_cast<int>(dim)) != 0;
    int& number = is_along ? place.inside : place.outside;
    number = number * sizes[dim] + coordinate[dim];
  }
  return place;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DeviceMesh>> DeviceMesh::Create(std::shared_ptr<ProcessGroup> group,
                                                                     std::vector<int> sizes,
                                                                     std::vector<std::string> names) {
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        "device mesh: the process group is null: expected the group of all ranks of the mesh");
  }
  FSDP_RETURN_IF_ERROR(AllReduceStatus(*group, CheckMesh(*group, sizes, names)));
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  mesh->all_ = std::move(group);
  mesh->sizes_ = std::move(sizes);
  mesh->names_ = std::move(names);
  FSDP_RETURN_IF_ERROR(CheckRanksAgree(*mesh->all_, mesh->ToString()));
  mesh->coordinate_ = CoordinateOf(mesh->all_->rank(), mesh->sizes_);
  // No Split for one dimension: each group costs memory and, on GPUs, a communicator.
  if (mesh->ndim() == 1) {
    mesh->groups_ = {mesh->all_};
    return mesh;
  }
  // All ranks split in the order of the dimensions, as collectives must be called in one order.
  for (int dim = 0; dim < mesh->ndim(); ++dim) {
    const Place place = PlaceAlong({dim}, mesh->sizes_, mesh->coordinate_);
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> along, mesh->all_->Split(place.outside, place.inside));
    mesh->groups_.push_back(std::move(along));
  }
  return mesh;
}

absl::StatusOr<int> DeviceMesh::DimOf(std::string_view name) const {
  for (int dim = 0; dim < ndim(); ++dim) {
    if (names_[dim] == name) return dim;
  }
  return absl::NotFoundError(absl::StrCat("device mesh: no dimension \"", std::string(name), "\"; there are: [",
                                          absl::StrJoin(names_, ", "), "]"));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> DeviceMesh::group(std::string_view name) const {
  FSDP_ASSIGN_OR_RETURN(const int dim, DimOf(name));
  return groups_[dim];
}

absl::StatusOr<std::vector<int>> DeviceMesh::DimsOf(const std::vector<std::string>& names) const {
  std::vector<int> dims;
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(const int dim, DimOf(name));
    // Ascending, so that the groups of single dimensions, which are shared with this mesh, keep their rank order.
    if (!dims.empty() && dim <= dims.back()) {
      return absl::InvalidArgumentError(absl::StrCat("submesh [", absl::StrJoin(names, ", "), "] of ", ToString(),
                                                     ": expected each name once, in the order of the mesh"));
    }
    dims.push_back(dim);
  }
  if (dims.empty())
    return absl::InvalidArgumentError(absl::StrCat("submesh of ", ToString(), ": no dimension is named"));
  return dims;
}

absl::StatusOr<std::shared_ptr<const DeviceMesh>> DeviceMesh::Submesh(const std::vector<std::string>& names) const {
  FSDP_ASSIGN_OR_RETURN(const std::vector<int> dims, DimsOf(names));
  if (static_cast<int>(dims.size()) == ndim()) return shared_from_this();
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  // The root is kept alive by its submeshes, so that root() is valid as long as any of them.
  mesh->root_ = root_ == nullptr ? shared_from_this() : root_;
  mesh->names_ = names;
  for (const int dim : dims) {
    mesh->sizes_.push_back(sizes_[dim]);
    mesh->coordinate_.push_back(coordinate_[dim]);
    mesh->groups_.push_back(groups_[dim]);
  }
  if (dims.size() == 1) {
    mesh->all_ = mesh->groups_[0];
    return mesh;
  }
  // Ranks with different names would split with unrelated colors, and some would block.
  FSDP_RETURN_IF_ERROR(CheckRanksAgree(*all_, absl::StrCat("submesh ", mesh->ToString())));
  const Place place = PlaceAlong(dims, sizes_, coordinate_);
  FSDP_ASSIGN_OR_RETURN(mesh->all_, all_->Split(place.outside, place.inside));
  return mesh;
}

std::string DeviceMesh::ToString() const {
  std::vector<std::string> dims;
  for (int dim = 0; dim < ndim(); ++dim) dims.push_back(absl::StrCat(names_[dim], "=", sizes_[dim]));
  return absl::StrJoin(dims, " x ");
}

}  // namespace fsdp
