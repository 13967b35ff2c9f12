// SPDX-License-Identifier: Apache-2.0
//
// ShardLayout: the places of the parameters of one unit in its unsharded buffer, and the part of each that a rank
// holds, as pure arithmetic on intervals. There are two kinds. FSDP1's flat parameter
// (torch/distributed/fsdp/_flat_param.py): the concatenated shards are the unsharded buffer.
//
//   parameters     | weight (35)         |pad| bias (7) |pad|       unsharded_numel = 44 of 2 ranks
//   shards         | rank 0: [0, 22)          | rank 1: [22, 44) |  shard_numel = 22
//
// The gradients of some of its parameters are packed: what each rank's shard has of them, one after another.
//
//   only bias      | bias (7)  |      shards: rank 0: [0, 0), rank 1: [0, 7)
//
// FSDP2's dim-0 chunks (torch/distributed/fsdp/_fully_shard): each parameter is cut into rows, ceil(d0 / W) for each
// rank, padded with zeros; a shard is one chunk of each parameter. The concatenated shards have to be copied to the
// buffer in another order (row_copy.h).
//
//   shards         | rank 0: w[0:3] b[0:3]    | rank 1: w[3:5] 0 b[3:5] 0  |  shard_numel = 3 * 7 + 3
//   parameters     | w[0:3] w[3:5] 0          | b[0:3] b[3:5] 0            |
//
// A parameter may be cut on another dimension, which the ranks must divide: its chunk is that part of each outer row,
// one after another, so it comes from several intervals of the parameter (ShardRuns).
//
//   shards         | rank 0: w[:, 0:2]        | rank 1: w[:, 2:4]          |
#ifndef FSDP_FSDP_UNITS_SHARD_LAYOUT_H_
#define FSDP_FSDP_UNITS_SHARD_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

enum class LayoutKind : uint8_t {
  kFlat,         // plain concatenation
  kFlatAligned,  // each parameter starts at 16 bytes of the forward dtype, the total is a multiple of the ranks
  kDim0,         // rows of each parameter, or of Entry::dim another dimension
};

struct ShardLayoutOptions {
  int world_size = 1;
  LayoutKind kind = LayoutKind::kFlat;
  DType forward_dtype = DType::kFloat32;  // kFlatAligned counts its elements
};

class ShardLayout {
 public:
  struct Entry {
    std::string fqn;
    Shape shape;
    int64_t offset = 0;  // of its first element in the unsharded buffer
    int dim = 0;         // kDim0: the dimension that is cut; others than 0 are divided by the ranks
  };

  // Part of a parameter within one rank's shard.
  struct Slice {
    Interval interval;            // of the parameter's elements; empty when the rank holds none
    int64_t offset_in_shard = 0;  // its first element's
    int64_t end_in_shard() const { return offset_in_shard + interval.size(); }
  };

  // An empty layout: no parameters.
  ShardLayout() = default;

  // Lays `parameters` (name and shape; offsets are set here) out in the given order.
  ShardLayout(std::vector<Entry> parameters, const ShardLayoutOptions& options);

  const std::vector<Entry>& parameters() const { return parameters_; }
  int world_size() const { return world_size_; }

  // Elements of the unsharded buffer. Includes padding between parameters. Excludes padding for the world size at its
  // end, except under kFlatAligned, in which that padding is part of the layout.
  int64_t unsharded_numel() const { return unsharded_numel_; }

  // Elements of each rank's shard, of a packed layout the most that a rank has; and of all shards. padded_numel() is
  // never less than unsharded_numel().
  int64_t shard_numel() const { return shard_numel_; }
  int64_t padded_numel() const { return is_packed() ? unsharded_numel_ : shard_numel_ * world_size_; }

  // The shard of `rank` in a buffer of all shards. Those of a packed layout are of unequal size, and may be empty.
  Interval ShardInterval(int rank) const {
    if (is_packed()) return {packed_shards_[rank], packed_shards_[rank + 1]};
    return {rank * shard_numel_, (rank + 1) * shard_numel_};
  }

  // A layout of the parameters of this flat one for which `kept` (by parameter) is true, in which each rank has the
  // elements that it has in this one. The others have no elements. Precondition: is_flat().
  ShardLayout Packed(const std::vector<bool>& kept) const;
  bool is_packed() const { return !packed_shards_.empty(); }

  // True if the concatenated shards are the unsharded buffer, so that collectives work in place. Otherwise the chunk of
  // parameter i in rank r's shard begins at chunk_offset(i) of the shard, and ChunkRuns(i, r, ranks) gives its places
  // in the buffer.
  bool in_place() const { return is_flat() || world_size_ == 1; }
  bool is_flat() const { return kind_ != LayoutKind::kDim0; }
  int64_t chunk_numel(size_t index) const { return chunks_[index].numel; }
  int64_t chunk_offset(size_t index) const { return chunks_[index].offset; }

  // Copies from parameter `index` (counted from its first element) to the chunk of `rank`, padding included, if `ranks`
  // ranks, which divide the layout's ranks, share the parameter.
  std::vector<IntervalCopy> ChunkRuns(size_t index, int rank, int ranks) const;

  // Elements at the end of `rank`'s shard behind the end of the flat parameter; 0 for kDim0.
  int64_t ShardPadding(int rank) const;

  // The part of parameter `index` in `rank`'s shard; an empty Slice if the rank has no part. For a parameter that is
  // cut on another dimension than 0 the interval counts in the chunk; ShardRuns gives the chunk's elements in the
  // parameter.
  Slice ShardSlice(size_t index, int rank) const;

  // The same as intervals of the parameter, in order.
  std::vector<Slice> ShardRuns(size_t index, int rank) const;

  // True if parameter `index` is cut on dimension 0 or not at all, so that ShardSlice is an interval of it.
  bool is_cut_by_rows(size_t index) const { return parameters_[index].dim == 0; }
  bool is_cut_by_rows() const;

  // As state dicts carry it.
  FlatUnitLayout ToUnitLayout(std::string unit_name) const;

 private:
  // The part of a kDim0 parameter that one rank has, including padding.
  struct Chunk {
    int64_t numel = 0;
    int64_t offset = 0;
  };

  void LayFlat();
  void LayDim0();

  std::vector<Entry> parameters_;
  std::vector<Chunk> chunks_;           // kDim0: by parameter
  std::vector<int64_t> packed_shards_;  // of a packed layout: the beginning of each rank's shard, and the end
  LayoutKind kind_ = LayoutKind::kFlat;
  int world_size_ = 1;
  int64_t alignment_ = 1;  // of the flat kinds: a parameter's offset is a multiple
  int64_t unsharded_numel_ = 0;
  int64_t shard_numel_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_SHARD_LAYOUT_H_
