// SPDX-License-Identifier: Apache-2.0
//
// ItemMeshes: each mesh of a checkpoint once. Every file repeats the meshes, with all ranks in them: files are compared
// by pointers, and a file's own copy of a mesh is compared once.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_MESHES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_MESHES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"

namespace fsdp {

class ItemMeshes {
 public:
  // The mesh with the shape and the ranks of `mesh`, which must live until ForgetFile. It has no place.
  std::shared_ptr<const StoredMesh> Find(const StoredMesh& mesh);

  // `tensor` with the mesh of Find.
  DTensor WithMesh(const DTensor& tensor);

  // Where `rank` is in a mesh that Find returned; -1: nowhere.
  int64_t PlaceOf(const StoredMesh& mesh, int rank) const;

  // The meshes that were passed to Find may be freed.
  void ForgetFile() { of_file_.clear(); }

 private:
  using Key = std::pair<std::vector<int64_t>, std::vector<int32_t>>;

  std::map<Key, std::shared_ptr<const StoredMesh>> meshes_;
  absl::flat_hash_map<const StoredMesh*, absl::flat_hash_map<int32_t, int64_t>> places_;
  absl::flat_hash_map<const StoredMesh*, std::shared_ptr<const StoredMesh>> of_file_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_MESHES_H_
