// SPDX-License-Identifier: Apache-2.0
//
// DTensorReader: the DTensors of a pickle. torch.save writes one as
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
//                         (DTensor, dtype, size, stride, offset, layout, device, requires_grad),      of the whole
//                         (None, {"_local_tensor": tensor, "_spec": DTensorSpec}))
//
//   DTensorSpec   {"mesh": DeviceMesh, "placements": (Shard, ...), "tensor_meta": TensorMeta(size, stride, dtype), ...}
//   DeviceMesh    {"_layout": shape and strides of each dimension, in "_flatten_rank_map": ranks, "_rank": who wrote
//   it,
//                 "_coordinate_on_dim", "_mesh_dim_names"}; before torch 2.10 {"mesh": tensor, "_flatten_mesh_list"}
//
// The calls are records of the pickle: nothing is made or imported.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DTENSOR_READER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DTENSOR_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"

namespace fsdp {

struct DTensorValue {
  DTensor tensor;
  PickleValue local;  // the value of the rank's part, a plain tensor
};

// True for the call that makes a DTensor.
bool IsDTensor(PickleValue value);

// For one pickle, whose values must stay while it is used; not thread-safe.
class DTensorReader {
 public:
  // The shape of a plain tensor of the pickle.
  using ShapeOf = std::function<absl::StatusOr<Shape>(PickleValue tensor)>;

  // Precondition: IsDTensor(value). kInvalidArgument names a form that is not read (a sum that is not reduced, an
  // unusual order of shards); kDataLoss numbers that contradict each other; kResourceExhausted meshes that together
  // have more ranks than any run. Messages name the byte of the pickle.
  absl::StatusOr<DTensorValue> Read(PickleValue value, const ShapeOf& shape_of);

 private:
  absl::StatusOr<std::shared_ptr<const StoredMesh>> MeshOf(PickleValue value, const ShapeOf& shape_of);
  absl::Status ReadMesh(PickleValue value, const ShapeOf& shape_of, StoredMesh& mesh);

  // Counts `ranks` that are looked at: many meshes can refer to one list of ranks.
  absl::Status Count(PickleValue value, int64_t ranks);

  absl::flat_hash_map<uint32_t, std::shared_ptr<const StoredMesh>> meshes_;  // by PickleValue::id
  std::vector<std::shared_ptr<const StoredMesh>> distinct_;
  int64_t counted_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DTENSOR_READER_H_
