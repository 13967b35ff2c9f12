// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/optim_slices.h"

#include <memory>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/optim_state_reader.h"

namespace fsdp {
namespace {

absl::Status CheckAll(const OptimStateReader& reader) {
  for (const OptimStateReader::Item& item : reader.items()) FSDP_RETURN_IF_ERROR(reader.Check(item, item.entry.dtype));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StateDict> OptimSlices(const UnitStore& units, const StateDict& state, StateSource from) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<OptimStateReader> reader, OptimStateReader::Create(units, state, from));
  const absl::Status checked = CheckAll(*reader);
  const bool alone = from == StateSource::kFull || from == StateSource::kLocal;
  FSDP_RETURN_IF_ERROR(alone ? checked : reader->gather().ranks().AgreeOn(checked));
  StateDict slices = EmptyStateDict(units);
  slices.type = StateDictType::kLocal;
  for (const OptimStateReader::Item& item : reader->items()) {
    const OptimEntry& entry = item.entry;
    const bool whole = entry.is_scalar() || item.unit < 0;
    const Interval interval = whole ? Interval{0, entry.shape.numel()} : reader->IntervalOf(item);
    Device& device = reader->gather().device();
    const int64_t nbytes = interval.size() * SizeOf(entry.dtype);
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, entry.is_scalar() ? device.AllocatePinned(nbytes) : device.Allocate(nbytes));
    const Tensor slice(std::move(buffer), entry.dtype, {interval.size()});
    FSDP_RETURN_IF_ERROR(reader->Read(item, slice));
    const int replica = whole ? reader->gather().ranks().rank() : ShardReplica(units.unit(item.unit));
    slices.Set(entry.key(), LiveSlice(entry.shape, interval, slice, replica));
  }
  FSDP_RETURN_IF_ERROR(reader->FinishReads());
  if (reader->param_groups()) slices.Set(StateKey::ParamGroups(), *reader->param_groups());
  FSDP_RETURN_IF_ERROR(reader->gather().Synchronize());
  return slices;
}

}  // namespace fsdp
