// SPDX-License-Identifier: Apache-2.0
//
// The group of a dimension has the ranks that agree in all other coordinates, so the other coordinate is the color of
// Split. Ranks first agree that each has valid arguments, then that all have the same: a rank that returned early with
// an error would leave the others in Split.
#include "fsdp/collectives/device_mesh.h"

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
  if (sizes.empty() || sizes.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("device mesh: ", sizes.size(), " dimensions; expected one, or two: replicate and shard"));
  }
  if (names.size() != sizes.size() || std::set<std::string>(names.begin(), names.end()).size() != names.size() ||
      std::set<std::string>(names.begin(), names.end()).count("") != 0) {
    return absl::InvalidArgumentError(absl::StrCat("device mesh: dimension names [", absl::StrJoin(names, ", "),
                                                   "]; expected ", sizes.size(), " distinct names"));
  }
  int64_t ranks = 1;
  for (const int size : sizes) {
    if (size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("device mesh: sizes [", absl::StrJoin(sizes, ", "),
                                                     "] have a dimension of size ", size, ": expected at least 1"));
    }
    ranks *= size;
  }
  if (ranks == group.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("device mesh: sizes [", absl::StrJoin(sizes, ", "), "] have ", ranks,
                                                 " ranks, the group has ", group.size()));
}

// Compares the texts of the meshes: equal texts mean equal sizes and names.
absl::Status CheckRanksAgree(ProcessGroup& group, const std::string& mine) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.GatherBlobs(mine));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("device mesh: rank 0 asks for ", all[0], ", rank ", rank, " for ", all[rank]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DeviceMesh>> DeviceMesh::Create(std::shared_ptr<ProcessGroup> group,
                                                                     std::vector<int> sizes,
                                                                     std::vector<std::string> names) {
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        "device mesh: the process group is null: expected the group of all ranks of the mesh");
  }
  FSDP_RETURN_IF_ERROR(AgreeOn(*group, CheckMesh(*group, sizes, names)));
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  mesh->all_ = std::move(group);
  mesh->sizes_ = std::move(sizes);
  mesh->names_ = std::move(names);
  FSDP_RETURN_IF_ERROR(CheckRanksAgree(*mesh->all_, mesh->ToString()));
  if (mesh->ndim() == 1) {
    mesh->groups_ = {mesh->all_};
    return mesh;
  }
  const int row = mesh->all_->rank() / mesh->sizes_[1];
  const int column = mesh->all_->rank() % mesh->sizes_[1];
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> along_rows, mesh->all_->Split(/*color=*/column, /*key=*/row));
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> along_columns, mesh->all_->Split(/*color=*/row, /*key=*/column));
  mesh->groups_ = {std::move(along_rows), std::move(along_columns)};
  return mesh;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> DeviceMesh::group(std::string_view name) const {
  for (int dim = 0; dim < ndim(); ++dim) {
    if (names_[dim] == name) return groups_[dim];
  }
  return absl::NotFoundError(absl::StrCat("device mesh: no dimension \"", std::string(name), "\"; there are: [",
                                          absl::StrJoin(names_, ", "), "]"));
}

std::string DeviceMesh::ToString() const {
  std::vector<std::string> dims;
  for (int dim = 0; dim < ndim(); ++dim) dims.push_back(absl::StrCat(names_[dim], "=", sizes_[dim]));
  return absl::StrJoin(dims, " x ");
}

}  // namespace fsdp
