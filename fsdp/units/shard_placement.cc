// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/shard_placement.h"

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::StatusOr<int> ShardDimOf(const ShardPlacementFn& fn, const Parameter& parameter, const std::string& name,
                               int ranks) {
  if (fn == nullptr) return 0;
  const int rank = parameter.shape.rank();
  const int given = fn(parameter).value_or(0);
  const std::string what =
      absl::StrCat("shard_placement_fn: parameter \"", name, "\" ", parameter.shape.ToString(), ": dimension ", given);
  if (given < -rank || given >= rank) return absl::InvalidArgumentError(absl::StrCat(what, " is out of range"));
  const int dim = given < 0 ? given + rank : given;
  if (dim == 0) return 0;
  if (parameter.part.has_value()) {
    return absl::UnimplementedError(absl::StrCat(what, " of a part of ", parameter.part->whole.ToString(),
                                                 ": expected 0 for parameters of parallel layers"));
  }
  if (parameter.shape.dim(dim) % ranks != 0) {
    return absl::UnimplementedError(absl::StrCat(what, " is not divided by ", ranks,
                                                 " ranks: expected an even division of dimensions other than 0"));
  }
  return dim;
}

}  // namespace fsdp
