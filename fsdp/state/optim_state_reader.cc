// SPDX-License-Identifier: Apache-2.0
//
// The entries are agreed on first (AgreeOnEntries), so every rank has the same list of items, even a rank without a
// state dict. Each item is then joined with the unit that has its parameter, under whichever name of a shared parameter
// it was saved. Scalars ("step") came with the list and need no exchange.
#include "fsdp/fsdp/state/optim_state_reader.h"

#include <map>
#include <memory>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/model_state.h"
#include "fsdp/fsdp/state/state_check.h"
#include "fsdp/optim/parameter_state.h"

namespace fsdp {
namespace {

absl::Status CheckAll(const OptimStateReader& reader) {
  for (const OptimStateReader::Item& item : reader.items()) FSDP_RETURN_IF_ERROR(reader.Check(item, item.entry.dtype));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OptimStateReader>> OptimStateReader::Create(const UnitStore& units,
                                                                           const StateDict& state, StateSource from) {
  FSDP_RETURN_IF_ERROR(
      CheckLocalIsFlat(units, from == StateSource::kLocal ? StateDictType::kLocal : StateDictType::kFull));
  std::unique_ptr<OptimStateReader> reader(new OptimStateReader(units, state, from));
  FSDP_ASSIGN_OR_RETURN(reader->gather_, StateGather::Create(units));
  reader->scatter_ = std::make_unique<StateScatter>(units, *reader->gather_, from);
  FSDP_ASSIGN_OR_RETURN(OptimEntries agreed, AgreeOnEntries(reader->gather_->ranks(), state, from));
  std::map<std::string, std::pair<int, size_t>> managed;
  for (int u = 0; u < units.size(); ++u) {
    const auto& parameters = units.unit(u).parameters;
    for (size_t i = 0; i < parameters.size(); ++i) managed[parameters[i]->fqn] = {u, i};
  }
  // After the first names: emplace never lets an alias replace the name of another parameter.
  for (const auto& [alias, fqn] : units.aliases()) {
    if (const auto found = managed.find(fqn); found != managed.end()) managed.emplace(alias, found->second);
  }
  for (OptimEntry& entry : agreed.entries) {
    const auto found = managed.find(entry.fqn);
    // -1: outside all units, or a factor, so every rank has it whole.
    auto [unit, index] = found == managed.end() ? std::pair(-1, size_t{0}) : found->second;
    if (unit >= 0 && FactorShape(entry.state, units.unit(unit).parameters[index]->whole_shape())) unit = -1;
    reader->items_.push_back({std::move(entry), unit, index});
  }
  reader->param_groups_ = std::move(agreed.param_groups);
  return reader;
}

Interval OptimStateReader::IntervalOf(const Item& item) const {
  if (item.unit < 0) return {0, item.entry.shape.numel()};
  return units_.unit(item.unit).sharded_parameters[item.index]->interval;
}

absl::Status OptimStateReader::Check(const Item& item, DType dtype) const {
  // A rank that receives the tensors has nothing to check; rank 0 does it.
  const bool has_state_dict = from_ != StateSource::kFullFirst || gather_->ranks().rank() == 0;
  if (!has_state_dict || item.entry.is_scalar()) return absl::OkStatus();
  const WantedTensor wanted = item.unit < 0 ? WantedWhole(item.entry.shape, from_, dtype)
                                            : WantedOf(units_.unit(item.unit), item.index, from_, dtype);
  return CheckWanted(item.entry.key(), *state_.FindTensor(item.entry.key()), wanted, gather_->ranks());
}

absl::Status OptimStateReader::Read(const Item& item, const Tensor& destination) {
  if (item.entry.is_scalar()) {
    return destination.numel() == 0 ? absl::OkStatus()
                                    : gather_->Copy(HostScalar(item.entry.dtype, item.entry.scalar), destination);
  }
  if (item.unit < 0) return scatter_->AddReplicated(TensorOf(item), destination);
  return scatter_->Add(item.unit, item.index, TensorOf(item), destination);
}

ShardedTensor OptimStateReader::TensorOf(const Item& item) const {
  if (const ShardedTensor* tensor = state_.FindTensor(item.entry.key())) return *tensor;
  ShardedTensor nothing;  // this rank gets its elements from rank 0
  nothing.shape = item.entry.shape;
  return nothing;
}

// All items are checked before the first is read, so an error costs no exchange. Replicas: a slice exists once for each
// replica of its shard, a scalar or whole tensor once for each rank.
absl::StatusOr<StateDict> OptimSlices(const UnitStore& units, const StateDict& state, StateSource from) {
  FSDP_RETURN_IF_ERROR(CheckLocalIsFlat(units, StateDictType::kLocal));
  if (from == StateSource::kLocal) FSDP_RETURN_IF_ERROR(CheckLocalIsOfNoMesh(units, StateDictType::kLocal));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<OptimStateReader> reader, OptimStateReader::Create(units, state, from));
  const absl::Status checked = CheckAll(*reader);
  // Under these two sources nothing is exchanged, so an error stays on its rank.
  const bool alone = from == StateSource::kFull || from == StateSource::kLocal;
  FSDP_RETURN_IF_ERROR(alone ? checked : reader->gather().ranks().AllReduceStatus(checked));
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
    if (whole) {
      slices.Set(entry.key(), LiveSlice(entry.shape, interval, slice, reader->gather().ranks().rank()));
      continue;
    }
    const Unit& unit = units.unit(item.unit);
    slices.Set(entry.key(), LiveSlicesOf(*unit.sharded_parameters[item.index], slice, ShardReplica(unit, item.index)));
  }
  FSDP_RETURN_IF_ERROR(reader->FinishReads());
  if (reader->param_groups()) slices.Set(StateKey::ParamGroups(), *reader->param_groups());
  FSDP_RETURN_IF_ERROR(reader->gather().Synchronize());
  return slices;
}

}  // namespace fsdp
