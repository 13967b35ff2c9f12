// SPDX-License-Identifier: Apache-2.0
//
// LeafTensors: makes the parameters of a sharded module of LibTorch follow its mirror's. While fsdp/ binds
// Parameter::data and ::grad, the tensor of the same name has that memory and dtype; otherwise it has no memory.
#ifndef FSDP_LIBTORCH_LEAF_TENSORS_H_
#define FSDP_LIBTORCH_LEAF_TENSORS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/libtorch/mirror_module.h"
#include "fsdp/libtorch/slot_storage.h"

namespace fsdp {

class LeafTensors final {
 public:
  struct Leaf {
    std::shared_ptr<Parameter> mirror = {};
    at::Tensor tensor = {};
    c10::intrusive_ptr<SlotStorage> storage = {};  // the tensor's
    int unit = -1;                                 // in the UnitStore
    int part = -1;                                 // the unit, or the dtype group of it that has the parameter
    at::ScalarType type = at::kFloat;              // while it is sharded: the unit's compute dtype
    bool requires_grad = false;                    // when it was sharded
    std::string message = {};                      // of the error of a use while it is sharded
  };

  // Takes the memory of all parameters that a unit of `units` has; ignored ones keep theirs. Asks `owner` to gather
  // when a parameter is used.
  LeafTensors(const UnitStore& units, const std::vector<MirroredParameter>& parameters, SlotOwner& owner);

  // Tensors that outlive this are unbound; a use of one reports why.
  ~LeafTensors();
  LeafTensors(const LeafTensors&) = delete;
  LeafTensors& operator=(const LeafTensors&) = delete;

  const std::vector<Leaf>& leaves() const { return leaves_; }
  const std::vector<int>& of_unit(int unit) const { return of_unit_[unit]; }

  // Makes every tensor what its mirror is now.
  void Follow();

  // A use of the leaf throws `problem`, until Follow binds it.
  void Refuse(int index, const std::string& problem);

  // Gives the tensors of units whose shards were changed since the last call a new version. Autograd then refuses a
  // backward that has saved them, as after an update in place.
  void MarkChanges(const UnitStore& units);

  // kFailedPrecondition, naming the parameter, if the program gave one other memory or another requires_grad.
  absl::Status Check() const;

  // Bytes of whole parameters that tensors refer to now, and the most since the last call.
  int64_t bound_bytes() const { return bound_bytes_; }
  int64_t TakePeakBoundBytes() { return std::exchange(peak_bound_bytes_, bound_bytes_); }

 private:
  void Adopt(const Unit& unit, Leaf& leaf);
  void FollowData(Leaf& leaf);
  void FollowGrad(Leaf& leaf);
  void SetType(Leaf& leaf, at::ScalarType type);

  std::vector<Leaf> leaves_;
  std::vector<std::vector<int>> of_unit_;
  std::vector<int64_t> versions_;  // by unit: Unit::shard_version() at the last MarkChanges
  int64_t bound_bytes_ = 0, peak_bound_bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_LEAF_TENSORS_H_
