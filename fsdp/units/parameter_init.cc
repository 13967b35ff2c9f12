// SPDX-License-Identifier: Apache-2.0
//
// A parameter comes to a unit with memory (its values count), without (its Initializer, or param_init_fn before it,
// gives values), or with values that are right only on rank 0 (sync_module_states). Values are computed and converted
// on the host and copied to the device once, because that happens once a run and the host can read every dtype.
//
// sync_module_states broadcasts over the shard group and then over the replicate group: after the first, each shard
// group agrees with its own first rank, and the first ranks of all shard groups are one replicate group. Each rank of
// tensor parallelism has its own such groups for its parts; parameters that all of them have whole come from the first
// of them. Small tensors share a bucket, since a model has hundreds of them and each broadcast costs a round trip.
#include "fsdp/fsdp/units/parameter_init.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// One broadcast over each group, the shard group first. `t` may be in any memory of the device.
void BroadcastFromFirst(const Tensor& t, const UnitGroups& groups, Stream& stream) {
  if (groups.shard != nullptr) groups.shard->Broadcast(t, /*root=*/0, stream);
  if (groups.replicate != nullptr) groups.replicate->Broadcast(t, /*root=*/0, stream);
}

absl::Status BroadcastBucket(absl::Span<const Tensor> tensors, const UnitGroups& groups, Stream& stream) {
  if (tensors.size() == 1) {
    BroadcastFromFirst(tensors[0], groups, stream);
    return stream.Synchronize();
  }
  int64_t nbytes = 0;
  for (const Tensor& t : tensors) nbytes += t.nbytes();
  FSDP_ASSIGN_OR_RETURN(const Tensor bucket, Tensor::Empty(stream.device(), DType::kUInt8, {nbytes}));
  int64_t at = 0;
  for (const Tensor& t : tensors) {
    stream.CopyAsync(bucket.data_as<std::byte>() + at, t.data(), t.nbytes());
    at += t.nbytes();
  }
  BroadcastFromFirst(bucket, groups, stream);
  at = 0;
  for (const Tensor& t : tensors) {
    stream.CopyAsync(t.data(), bucket.data_as<std::byte>() + at, t.nbytes());
    at += t.nbytes();
  }
  return stream.Synchronize();
}

}  // namespace

absl::Status MaterializeUnit(const UnitModule& unit, const ParamInitFn& param_init_fn) {
  const auto lacks_memory = [](const auto& parameter) { return !parameter->data.defined(); };
  if (param_init_fn == nullptr) return absl::OkStatus();
  if (std::none_of(unit.parameters.begin(), unit.parameters.end(), lacks_memory)) return absl::OkStatus();
  for (Module* module : unit.own_modules) FSDP_RETURN_IF_ERROR(param_init_fn(*module));
  for (const auto& parameter : unit.parameters) {
    if (!parameter->data.defined()) {
      return absl::FailedPreconditionError(absl::StrCat("param_init_fn left parameter \"", parameter->fqn, "\" ",
                                                        parameter->shape.ToString(),
                                                        " without memory: expected it to set Parameter::data"));
    }
    if (parameter->data.shape() != parameter->shape) {
      return absl::InvalidArgumentError(absl::StrCat("param_init_fn gave parameter \"", parameter->fqn, "\" data ",
                                                     parameter->data.shape().ToString(), ": expected ",
                                                     parameter->shape.ToString()));
    }
  }
  return absl::OkStatus();
}

absl::Status SyncParameters(const UnitModule& unit, const UnitGroups& groups, uint64_t seed, Stream& stream) {
  std::vector<Tensor> tensors;
  for (const auto& parameter : unit.parameters) {
    FSDP_ASSIGN_OR_RETURN(Tensor values, Tensor::Empty(stream.device(), parameter->dtype, parameter->shape));
    FSDP_RETURN_IF_ERROR(CopyInitialValues(*parameter, {0, parameter->shape.numel()}, seed, values, stream));
    parameter->data = values;
    tensors.push_back(std::move(values));
  }
  return BroadcastTensors(tensors, groups, stream);
}

absl::Status SyncCopies(const UnitModule& unit, const std::shared_ptr<ProcessGroup>& tensor_parallel, Stream& stream) {
  if (tensor_parallel == nullptr) return absl::OkStatus();
  std::vector<Tensor> copies;
  for (const auto& parameter : unit.parameters) {
    if (!parameter->part) copies.push_back(parameter->data);
  }
  return BroadcastTensors(copies, {.shard = tensor_parallel, .replicate = nullptr}, stream);
}

absl::Status BroadcastTensors(absl::Span<const Tensor> tensors, const UnitGroups& groups, Stream& stream) {
  size_t begin = 0;
  while (begin < tensors.size()) {
    size_t end = begin;
    int64_t nbytes = 0;
    while (end < tensors.size() && (end == begin || nbytes + tensors[end].nbytes() <= kSyncBucketBytes)) {
      nbytes += tensors[end++].nbytes();
    }
    FSDP_RETURN_IF_ERROR(BroadcastBucket(tensors.subspan(begin, end - begin), groups, stream));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status CopyInitialValues(const Parameter& parameter, const Interval& interval, uint64_t seed, const Tensor& out,
                               Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(const Buffer staging, stream.device().AllocatePinned(out.nbytes()));
  if (parameter.data.defined()) {
    // Through host memory: the values may be on the host or the device, and in another dtype.
    const Tensor source = parameter.data.Slice(interval);
    FSDP_ASSIGN_OR_RETURN(const Buffer values, stream.device().AllocatePinned(source.nbytes()));
    stream.CopyAsync(values.data(), source.data(), source.nbytes());
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    FSDP_RETURN_IF_ERROR(Convert(source.dtype(), values.data(), out.dtype(), staging.data(), interval.size()));
  } else {
    std::vector<float> values(interval.size());
    parameter.FillInitial(seed, interval, values.data());
    FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, values.data(), out.dtype(), staging.data(), interval.size()));
  }
  stream.CopyAsync(out.data(), staging.data(), out.nbytes());
  return stream.Synchronize();
}

}  // namespace fsdp
