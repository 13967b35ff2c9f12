// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_meshes.h"

namespace fsdp {

// Each file has its own copy of the mesh, which differs only in the rank that wrote it. One object for all of them, so
// that meshes are compared by pointers and a rank's place is one lookup.
std::shared_ptr<const StoredMesh> ItemMeshes::Find(const StoredMesh& mesh) {
  const auto known = of_file_.find(&mesh);
  if (known != of_file_.end()) return known->second;
  std::shared_ptr<const StoredMesh>& found = meshes_[{mesh.shape, mesh.ranks}];
  if (found == nullptr) {
    auto copy = std::make_shared<StoredMesh>(mesh);
    copy->place = -1;
    absl::flat_hash_map<int32_t, int64_t>& places = places_[copy.get()];
    for (size_t i = 0; i < copy->ranks.size(); ++i) places[copy->ranks[i]] = static_cast<int64_t>(i);
    found = std::move(copy);
  }
  return of_file_[&mesh] = found;
}

DTensor ItemMeshes::WithMesh(const DTensor& tensor) {
  DTensor result = tensor;
  result.mesh = Find(*tensor.mesh);
  return result;
}

int64_t ItemMeshes::PlaceOf(const StoredMesh& mesh, int rank) const {
  const auto& places = places_.at(&mesh);
  const auto at = places.find(rank);
  return at == places.end() ? -1 : at->second;
}

}  // namespace fsdp
