// SPDX-License-Identifier: Apache-2.0
//
// FlaxTree: the leaves of one file of flax.serialization, and where the elements of its arrays are. A tree is maps of
// maps, whose leaves are arrays (flax_array.h) and plain values of Python.
#ifndef FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_TREE_H_
#define FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_TREE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/orbax/narrow_integer.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Names are the keys on the path, joined by dots: "params.layers_0.kernel".
struct FlaxArray {
  std::string name;
  DType dtype = DType::kFloat32;
  std::optional<NarrowInteger> narrow;  // what each byte holds, if it is an integer of fewer bits
  Shape shape;
  std::vector<ByteRange> pieces;  // of the file, with the elements, row-major; whole elements in each
};

// A leaf that is not an array: a number or text of Python, as the JSON of python_json.h.
struct FlaxValue {
  std::string name;
  std::string json;
  std::optional<int64_t> integer = {};  // of an integer that is not negative
};

struct FlaxTree {
  std::vector<FlaxArray> arrays;
  std::vector<FlaxValue> values;
  std::vector<std::string> left_out;  // `"params.w" (float4_e2m1fn)`: a dtype that no tensor here has; the first ones
  int64_t left_out_count = 0;
  std::vector<std::string> empty;  // the branches without a leaf; the first ones
  int64_t empty_count = 0;
};

// Reads all but the elements. kDataLoss names the value and the byte of what is not as above: sizes that contradict
// each other, two equal keys, bytes after the tree; also more than 64 levels, and values that take more memory than
// four times their bytes and 64 MiB. The elements have no checksum.
absl::StatusOr<FlaxTree> ReadFlaxTree(const File& file);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_TREE_H_
