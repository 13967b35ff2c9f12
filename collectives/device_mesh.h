// SPDX-License-Identifier: Apache-2.0
//
// DeviceMesh: the ranks of a group as a row-major grid with named dimensions, and a process group per dimension, as
// torch.distributed.device_mesh. With sizes {2, 3} and names {"replicate", "shard"}:
//
//                 shard
//   replicate   0  1  2      group("shard") of rank 4: {3, 4, 5}
//               3  4  5      group("replicate") of rank 4: {1, 4}
//
// A mesh may have any number of dimensions. A submesh is the part of it that some dimensions span: of the mesh {"dp",
// "tp"}, FSDP takes the submesh "dp", and tensor-parallel layers take the group of "tp".
#ifndef FSDP_COLLECTIVES_DEVICE_MESH_H_
#define FSDP_COLLECTIVES_DEVICE_MESH_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  // `sizes` has at least one dimension, and their product is group->size(); `names` are distinct and not empty.
  // kInvalidArgument if not, and if ranks pass different meshes. Every rank calls it; it blocks.
  static absl::StatusOr<std::shared_ptr<const DeviceMesh>> Create(std::shared_ptr<ProcessGroup> group,
                                                                  std::vector<int> sizes,
                                                                  std::vector<std::string> names);

  int ndim() const { return static_cast<int>(sizes_.size()); }
  const std::vector<int>& sizes() const { return sizes_; }
  const std::vector<std::string>& names() const { return names_; }

  // All ranks of the mesh.
  const std::shared_ptr<ProcessGroup>& all() const { return all_; }

  // The ranks that differ from this one in dimension `dim` only; this rank's coordinate is its rank in that group.
  const std::shared_ptr<ProcessGroup>& group(int dim) const { return groups_[dim]; }

  // The group of a named dimension; kNotFound lists the names of the mesh.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group(std::string_view name) const;

  // This rank's index in each dimension.
  const std::vector<int>& coordinate() const { return coordinate_; }

  // This rank's mesh along the dimensions `names` only, which must be in this mesh's order, as PyTorch's mesh["dp"] and
  // mesh["replicate", "shard"]. It shares the groups of single dimensions with this mesh. kNotFound lists the names of
  // this mesh; kInvalidArgument for no name, a repeated name, or another order. Every rank passes the same names;
  // collective and blocking for more than one name, unless all dimensions are named.
  absl::StatusOr<std::shared_ptr<const DeviceMesh>> Submesh(const std::vector<std::string>& names) const;

  // The mesh that Create made: this one, or the mesh of which this is a submesh. It outlives this mesh.
  const DeviceMesh& root() const { return root_ == nullptr ? *this : *root_; }

  // "replicate=2 x shard=3".
  std::string ToString() const;

 private:
  DeviceMesh() = default;
  absl::StatusOr<int> DimOf(std::string_view name) const;
  absl::StatusOr<std::vector<int>> DimsOf(const std::vector<std::string>& names) const;

  std::shared_ptr<const DeviceMesh> root_;  // null: this is a root
  std::shared_ptr<ProcessGroup> all_;
  std::vector<int> sizes_;
  std::vector<std::string> names_;
  std::vector<int> coordinate_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;  // by dimension
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_DEVICE_MESH_H_
