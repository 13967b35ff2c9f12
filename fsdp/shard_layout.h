// SPDX-License-Identifier: Apache-2.0
//
// FlatLayout: where the parameters of one unit lie in its flat parameter, and which part of each a rank holds. The
// rules of FSDP1's FlatParamHandle (torch/distributed/fsdp/_flat_param.py), as pure arithmetic on intervals:
//
//   parameters     | weight (35)         |pad| bias (7) |pad|       unsharded_numel = 44 of 2 ranks
//   shards         | rank 0: [0, 22)          | rank 1: [22, 44) |  shard_numel = 22
#ifndef FSDP_FSDP_FLAT_LAYOUT_H_
#define FSDP_FSDP_FLAT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/interval.h"
#include "tensor/shape.h"
#include "tensor/state_dict.h"

namespace fsdp {

struct FlatLayoutOptions {
  int world_size = 1;

  // Each parameter starts at a multiple of 16 bytes of `forward_dtype`, and the total is a multiple of world_size.
  // Off: plain concatenation.
  bool align_parameters = false;
  DType forward_dtype = DType::kFloat32;
};

class FlatLayout {
 public:
  struct Entry {
    std::string fqn;
    Shape shape;
    int64_t offset = 0;  // of its first element in the flat parameter
  };

  // Part of a parameter within one rank's shard.
  struct Slice {
    Interval interval;            // of the parameter's elements; empty when the rank holds none
    int64_t offset_in_shard = 0;  // where it starts
  };

  // An empty layout: no parameters.
  FlatLayout() = default;

  // Lays `parameters` (name and shape; offsets are set here) out in the given order.
  FlatLayout(std::vector<Entry> parameters, const FlatLayoutOptions& options);

  const std::vector<Entry>& parameters() const { return parameters_; }

  // Elements of the flat parameter, padding between parameters counted, padding for the world size not (but for that of
  // align_parameters, which is part of the layout).
  int64_t unsharded_numel() const { return unsharded_numel_; }

  // Elements of each rank's shard, ceil(unsharded_numel / world_size), and of all of them together.
  int64_t shard_numel() const { return shard_numel_; }
  int64_t padded_numel() const { return shard_numel_ * world_size_; }

  // Elements at the end of `rank`'s shard that belong to no parameter because the flat parameter has ended.
  int64_t ShardPadding(int rank) const;

  // The part of parameter `index` in `rank`'s shard.
  Slice ShardSlice(size_t index, int rank) const;

  // As state dicts carry it.
  FlatUnitLayout ToUnitLayout(std::string unit_name) const;

 private:
  std::vector<Entry> parameters_;
  int world_size_ = 1;
  int64_t unsharded_numel_ = 0;
  int64_t shard_numel_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FLAT_LAYOUT_H_
