// SPDX-License-Identifier: Apache-2.0
//
// Runs at the start of each forward and before calls that read parameters, so a program may assign
// ShardedParameter::data at any time between steps. Replacing the shard's view instead of copying would be cheaper and
// wrong: the all-gather reads the shard as one buffer.
#include "fsdp/fsdp/units/writeback.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::Status WriteBack(const Tensor& view, Stream& stream, ShardedParameter& parameter) {
  const Tensor replaced = parameter.data;
  if (!replaced.defined() || replaced.numel() != view.numel() || replaced.dtype() != view.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write back parameter \"", parameter.fqn, "\": its data was replaced by ",
        replaced.defined() ? absl::StrCat(replaced.shape().ToString(), " ", std::string(DTypeName(replaced.dtype())))
                           : "nothing",
        ", but this rank's slice is ", view.shape().ToString(), " ", std::string(DTypeName(view.dtype()))));
  }
  stream.CopyAsync(view.data(), replaced.data(), replaced.nbytes());
  stream.Run([replaced] { return absl::OkStatus(); });  // holds its memory until the copy has run
  parameter.data = view;
  parameter.MarkChanged();
  return absl::OkStatus();
}

// Ranks gather a unit together, and those whose slice was not replaced do not know that the copy they share is old.
absl::Status ReplacedTooEarly(const Unit& unit, const ShardedParameter& parameter) {
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot write back parameter \"", parameter.fqn, "\": its data was replaced while its unit ", unit.display_name(),
      " is unsharded, as after an evaluation or a backward without synchronisation; replace it "
      "after a backward that reshards, or write to it by LoadStateDict or SummonFullParams"));
}

}  // namespace

absl::Status WriteBackReplaced(const UnitStore& units, const std::vector<bool>& gathered, Stream& stream) {
  for (int index = 0; index < units.size(); ++index) {
    const Unit* unit = &units.unit(index);
    for (size_t i = 0; i < unit->sharded_parameters.size(); ++i) {
      const ShardLayout::Slice slice = unit->layout.ShardSlice(i, unit->groups.shard_rank());
      const Tensor view = unit->shard.Slice({slice.offset_in_shard, slice.offset_in_shard + slice.interval.size()});
      ShardedParameter& parameter = *unit->sharded_parameters[i];
      // Compared by address: a tensor of equal values elsewhere may be written to later, so it is replaced too. A rank
      // without elements of the parameter has a view of no memory, whose address means nothing.
      if (parameter.data.defined() && parameter.data.data() == view.data() && parameter.data.numel() == view.numel()) {
        continue;
      }
      if (view.numel() == 0 && parameter.data.defined() && parameter.data.numel() == 0) continue;
      if (gathered[index]) return ReplacedTooEarly(*unit, parameter);
      FSDP_RETURN_IF_ERROR(WriteBack(view, stream, parameter));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
