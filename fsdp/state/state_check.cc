// SPDX-License-Identifier: Apache-2.0
//
// A tensor is checked in the order in which a reader can act on it: shape, dtype, the elements that this rank must hold
// under the form that is being loaded, and last whether there is memory behind them. Floating-point dtypes convert into
// each other; other dtypes must be equal.
#include "fsdp/fsdp/state/state_check.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

const char* NameOf(StateSource from) {
  switch (from) {
    case StateSource::kSharded:
      return "sharded";
    case StateSource::kLocal:
      return "local";
    default:
      return "full";
  }
}

absl::Status Refused(const StateKey& key, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", key.ToString(), "\": ", why));
}

bool Converts(DType from, DType to) { return from == to || (IsFloatingPoint(from) && IsFloatingPoint(to)); }

}  // namespace

WantedTensor WantedOf(const Unit& unit, size_t index, StateSource from, DType dtype) {
  const Shape& shape = unit.parameters[index]->whole_shape();
  WantedTensor wanted = WantedWhole(shape, from, dtype);
  if (from == StateSource::kSharded) {
    wanted.interval = ChunkPlaceOf(unit, index).Of(shape);
  } else if (from == StateSource::kLocal) {
    wanted.interval = unit.sharded_parameters[index]->interval;
  }
  return wanted;
}

WantedTensor WantedWhole(const Shape& shape, StateSource from, DType dtype) {
  return {dtype, shape, {0, shape.numel()}, from};
}

absl::Status CheckWanted(const StateKey& key, const ShardedTensor& source, const WantedTensor& wanted,
                         const AllRanks& ranks) {
  if (source.shape != wanted.shape) {
    return Refused(key, absl::StrCat("shape ", source.shape.ToString(),
                                     " in the state dict != ", wanted.shape.ToString(), " in the model"));
  }
  if (!Converts(source.dtype, wanted.dtype)) {
    return Refused(key, absl::StrCat("dtype ", std::string(DTypeName(source.dtype)),
                                     " in the state dict cannot become ", std::string(DTypeName(wanted.dtype))));
  }
  const Interval held =
      source.shards.empty() ? Interval{wanted.interval.begin, wanted.interval.begin} : source.shards[0].interval;
  if (source.shards.size() > 1 || (held != wanted.interval && !(held.empty() && wanted.interval.empty()))) {
    return Refused(key, absl::StrCat("elements ", held.ToString(), " on rank ", ranks.rank(), " of ", ranks.size(),
                                     " are not the ", wanted.interval.ToString(), " that a ", NameOf(wanted.from),
                                     " state dict has"));
  }
  if (held.empty()) return absl::OkStatus();
  const Tensor& data = source.shards[0].data;
  if (data.defined() && data.dtype() == source.dtype && data.numel() == held.size()) return absl::OkStatus();
  return Refused(key, absl::StrCat("its shard ", held.ToString(), " has no such elements of ",
                                   std::string(DTypeName(source.dtype)), " behind it"));
}

}  // namespace fsdp
