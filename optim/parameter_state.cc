// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/parameter_state.h"

#include <vector>

namespace fsdp {

std::optional<Shape> FactorShape(std::string_view state, const Shape& parameter) {
  if (parameter.rank() < 2 || (state != kRowVar && state != kColVar)) return std::nullopt;
  std::vector<int64_t> dims(parameter.dims().begin(), parameter.dims().end());
  dims[dims.size() - (state == kRowVar ? 1 : 2)] = 1;
  return Shape::Create(dims).value_or(Shape());
}

}  // namespace fsdp
