// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Kind = DTensorPlacement::Kind;
using Order = std::vector<int>;  // dimensions of the mesh that cut the tensor, in the order of cutting

// The rule of torch's _explicit_order_placements: a strided shard waits for the Shard of its dimension to the right of
// it; of several, the rightmost cuts first, and each states how many parts there are already.
absl::StatusOr<Order> OrderOf(const DTensor& tensor) {
  const auto count = static_cast<int>(tensor.placements.size());
  Order order;
  Order waiting;
  std::vector<bool> has_strided(tensor.shape.rank(), false);
  for (int m = 0; m < count; ++m) {
    const DTensorPlacement& placement = tensor.placements[m];
    if (placement.kind == Kind::kReplicate) continue;
    if (placement.kind == Kind::kStridedShard) {
      waiting.push_back(m);
      continue;
    }
    if (has_strided[placement.dim]) {
      return absl::InvalidArgumentError(absl::StrCat("the placements ", tensor.ToString(), " cut dimension ",
                                                     placement.dim,
                                                     " again after a strided shard, in an order that is not known"));
    }
    order.push_back(m);
    int64_t parts = tensor.mesh->shape[m];
    for (size_t i = waiting.size(); i-- > 0;) {
      const DTensorPlacement& strided = tensor.placements[waiting[i]];
      if (strided.dim != placement.dim) continue;
      if (strided.split_factor != parts) {
        return absl::DataLossError(absl::StrCat(strided.ToString(), " of ", tensor.ToString(), ": dimension ",
                                                strided.dim, " has ", parts, " parts already"));
      }
      parts *= tensor.mesh->shape[waiting[i]];
      order.push_back(waiting[i]);
      waiting.erase(waiting.begin() + static_cast<int64_t>(i));
      has_strided[placement.dim] = true;
    }
  }
  for (const int m : waiting) {
    if (tensor.placements[m].split_factor != 1) {
      return absl::InvalidArgumentError(absl::StrCat("the placements ", tensor.ToString(),
                                                     " have a strided shard without the shard that it divides, whose "
                                                     "order is not known"));
    }
    order.push_back(m);
  }
  return order;
}

// The coordinate of `place` along dimension `m`.
int64_t Coordinate(const StoredMesh& mesh, int64_t place, int m) {
  for (size_t d = mesh.shape.size() - 1; d > static_cast<size_t>(m); --d) place /= mesh.shape[d];
  return place % mesh.shape[m];
}

}  // namespace

std::string StoredMesh::ToString() const {
  constexpr size_t kMostNamed = 16;
  const size_t named = std::min(ranks.size(), kMostNamed);
  std::string text = absl::StrCat("[", absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<int64_t>(named), ", "),
                                  named < ranks.size() ? ", ..." : "", "]");
  if (shape.size() == 1 && names.empty()) return text;
  std::vector<std::string> dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    dims.push_back(names.empty() ? absl::StrCat(shape[d]) : absl::StrCat(Printable(names[d]), " ", shape[d]));
  }
  return absl::StrCat(text, " as ", absl::StrJoin(dims, ", "));
}

bool DTensorPlacement::operator==(const DTensorPlacement& other) const {
  return kind == other.kind && dim == other.dim && split_factor == other.split_factor;
}

std::string DTensorPlacement::ToString() const {
  switch (kind) {
    case Kind::kReplicate:
      return "Replicate";
    case Kind::kShard:
      return absl::StrCat("Shard(", dim, ")");
    case Kind::kStridedShard:
      return absl::StrCat("_StridedShard(", dim, ", split_factor=", split_factor, ")");
  }
  return "";
}

bool DTensor::is_whole() const {
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].kind != Kind::kReplicate && mesh->shape[m] > 1) return false;
  }
  return true;
}

std::string DTensor::ToString() const {
  std::vector<std::string> texts;
  for (const DTensorPlacement& placement : placements) texts.push_back(placement.ToString());
  return absl::StrCat("(", absl::StrJoin(texts, ", "), ") over the ranks ", mesh->ToString());
}

// A mesh is data of a file: its sizes bound loops and memory later on.
absl::Status CheckMesh(const StoredMesh& mesh) {
  constexpr size_t kMaxDims = 16;
  const auto broken = [](const std::string& what) { return absl::DataLossError(absl::StrCat("a mesh ", what)); };
  if (mesh.shape.empty() || mesh.shape.size() > kMaxDims) {
    return broken(absl::StrCat("of ", mesh.shape.size(), " dimensions, expected 1 to ", kMaxDims));
  }
  int64_t count = 1;
  for (const int64_t size : mesh.shape) {
    if (size < 1 || size > kMaxMeshRanks || count > kMaxMeshRanks / size) {
      return broken(absl::StrCat("with the sizes [", absl::StrJoin(mesh.shape, ", "), "]"));
    }
    count *= size;
  }
  if (count != static_cast<int64_t>(mesh.ranks.size())) {
    return broken(
        absl::StrCat("with the sizes [", absl::StrJoin(mesh.shape, ", "), "] and ", mesh.ranks.size(), " ranks"));
  }
  absl::flat_hash_set<int32_t> seen;
  for (const int32_t rank : mesh.ranks) {
    if (rank < 0 || rank >= kMaxMeshRanks || !seen.insert(rank).second) {
      return broken(absl::StrCat("with the rank ", rank, rank < 0 || rank >= kMaxMeshRanks ? "" : " twice"));
    }
  }
  if (!mesh.names.empty() && mesh.names.size() != mesh.shape.size()) {
    return broken(absl::StrCat("of ", mesh.shape.size(), " dimensions and ", mesh.names.size(), " names"));
  }
  return absl::OkStatus();
}

absl::Status CheckDTensor(const DTensor& tensor) {
  if (tensor.placements.size() != tensor.mesh->shape.size()) {
    return absl::DataLossError(
        absl::StrCat(tensor.placements.size(), " placements on a mesh of ", tensor.mesh->shape.size(), " dimensions"));
  }
  for (const DTensorPlacement& placement : tensor.placements) {
    if (placement.kind == Kind::kReplicate) continue;
    if (placement.dim < 0 || placement.dim >= tensor.shape.rank() || placement.split_factor < 1) {
      return absl::DataLossError(absl::StrCat(placement.ToString(), " of a tensor of shape ", tensor.shape.ToString()));
    }
  }
  return OrderOf(tensor).status();
}

// torch.chunk along each dimension that is cut: parts of ceil(n / parts) elements, of which the last ones may be
// smaller or empty. Cutting a part again is what several dimensions of a mesh do to one dimension of a tensor.
Box BoxOf(const DTensor& tensor, int64_t place) {
  const absl::Span<const int64_t> dims = tensor.shape.dims();
  Box box = {std::vector<int64_t>(dims.size(), 0), {dims.begin(), dims.end()}};
  const absl::StatusOr<Order> order = OrderOf(tensor);
  for (const int m : *order) {
    const int dim = tensor.placements[m].dim;
    const int64_t parts = tensor.mesh->shape[m];
    const int64_t each = (box.count[dim] + parts - 1) / parts;
    const int64_t begin = std::min(Coordinate(*tensor.mesh, place, m) * each, box.count[dim]);
    box.start[dim] += begin;
    box.count[dim] = std::min(each, box.count[dim] - begin);
  }
  return box;
}

// The place with coordinate 0 along every dimension of the mesh that only copies.
int64_t FirstCopyOf(const DTensor& tensor, int64_t place) {
  int64_t stride = 1;
  for (size_t m = tensor.placements.size(); m-- > 0;) {
    if (tensor.placements[m].kind == Kind::kReplicate) {
      place -= Coordinate(*tensor.mesh, place, static_cast<int>(m)) * stride;
    }
    stride *= tensor.mesh->shape[m];
  }
  return place;
}

bool IsFirstCopy(const DTensor& tensor, int64_t place) { return FirstCopyOf(tensor, place) == place; }

}  // namespace fsdp
