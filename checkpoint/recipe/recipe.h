// SPDX-License-Identifier: Apache-2.0
//
// Recipe: how the tensors of a model in another layout are made of its tensors in this one: fused, split, stacked,
// transposed or renamed. Each operation only moves elements, but for a cast:
//
//   {"targets": {"mlp.gate_up_proj.weight":
//       {"op": "concat", "axis": 0, "inputs": [{"op": "source", "name": "mlp.gate_proj.weight"},
//                                              {"op": "source", "name": "mlp.up_proj.weight"}]}, ...}}
//
// Pure.
#ifndef FSDP_CHECKPOINT_RECIPE_RECIPE_H_
#define FSDP_CHECKPOINT_RECIPE_RECIPE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

enum class RecipeOp : uint8_t {
  kSource,       // name: a tensor
  kStack,        // axis, inputs: equal shapes, a new axis
  kConcat,       // axis, inputs: equal shapes but for the axis
  kChunk,        // axis, index, count: one of equal parts
  kSlice,        // axis, begin, end
  kTranspose,    // axis, second_axis: swapped
  kReshape,      // shape: row-major
  kInterleave,   // axis: (g0 u0 g1 u1) to (g0 g1 u0 u1); is_inverse: back
  kRopePermute,  // heads: axis 0, the pairs of a rotation next to each other to halves of a head; is_inverse: back
  kCast,         // dtype: rounds to nearest even
};

// One operation, with the members that it has.
struct RecipeExpression {
  RecipeOp op = RecipeOp::kSource;
  std::string name = {};
  int64_t axis = 0;  // from the end if it is negative, as in PyTorch
  int64_t second_axis = 0;
  int64_t index = 0;
  int64_t count = 1;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t heads = 1;
  bool is_inverse = false;
  std::vector<int64_t> shape = {};
  DType dtype = DType::kFloat32;
  std::vector<RecipeExpression> inputs = {};
};

struct Recipe {
  std::vector<std::pair<std::string, RecipeExpression>> targets;  // by name
};

inline constexpr int64_t kMaxRecipeBytes = int64_t{64} << 20;

// kDataLoss, with the target and the member, for text of another form, an unknown operation or dtype, and more than 32
// operations in one another. Other members than "targets" are for people.
absl::StatusOr<Recipe> ParseRecipe(std::string_view json);

// The recipe in the file `path`; the error names it.
absl::StatusOr<Recipe> ReadRecipe(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_RECIPE_RECIPE_H_
