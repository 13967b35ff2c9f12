// SPDX-License-Identifier: Apache-2.0
//
// One buffer for each state, device and dtype, cut into slices, rather than one for each parameter: a transformer has
// hundreds of parameters, many of them a few hundred elements on this rank. All memory is taken by the first Create,
// also for parameters that have no state yet, so a later step never allocates; exists_ records which slices are in use.
#include "fsdp/optim/state_buffers.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

StateBuffers::StateBuffers(std::vector<std::string> names, absl::Span<ShardedParameter* const> parameters)
    : names_(std::move(names)),
      parameters_(parameters.begin(), parameters.end()),
      has_(parameters.size(), std::vector<bool>(names_.size(), true)),
      exists_(parameters.size(), false) {}

void StateBuffers::Limit(size_t index, const StateRule& rule) {
  for (size_t state = 0; rule && state < names_.size(); ++state) {
    has_[index][state] = rule(*parameters_[index], names_[state]);
  }
}

std::vector<std::string> StateBuffers::NamesOf(size_t index) const {
  std::vector<std::string> names;
  for (size_t state = 0; state < names_.size(); ++state) {
    if (has(state, index)) names.push_back(names_[state]);
  }
  return names;
}

absl::Status StateBuffers::Create(size_t index) {
  if (exists_[index]) return absl::OkStatus();
  if (slices_.empty()) FSDP_RETURN_IF_ERROR(AllocateFirst());
  exists_[index] = true;
  created_.push_back(index);
  return absl::OkStatus();
}

void StateBuffers::TakeBackStep() {
  for (const size_t index : created_) exists_[index] = false;
  created_.clear();
}

absl::StatusOr<Tensor> StateBuffers::Find(size_t index, std::string_view name, bool create) {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("no parameter ", index, ": the optimizer has ", parameters_.size()));
  }
  for (size_t state = 0; state < names_.size(); ++state) {
    if (names_[state] != name || !has(state, index)) continue;
    if (create) FSDP_RETURN_IF_ERROR(Create(index));
    return exists_[index] ? slices_[state][index] : Tensor();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("parameter \"", parameters_[index]->fqn, "\" has no optimizer state \"", std::string(name), "\""));
}

absl::Status StateBuffers::Add(absl::Span<ShardedParameter* const> parameters, const StateRule& rule) {
  const size_t first = parameters_.size();
  const auto resize = [this](size_t size) {
    parameters_.resize(size);
    exists_.resize(size);
    has_.resize(size, std::vector<bool>(names_.size(), true));
    for (std::vector<Tensor>& slices : slices_) slices.resize(size);
  };
  resize(first + parameters.size());
  std::copy(parameters.begin(), parameters.end(), parameters_.begin() + first);
  for (size_t i = first; i < parameters_.size(); ++i) Limit(i, rule);
  if (slices_.empty()) return absl::OkStatus();  // the first Create allocates for all
  absl::Status status = Allocate(first);
  if (!status.ok()) resize(first);
  return status;
}

absl::Status StateBuffers::AllocateFirst() {
  slices_.assign(names_.size(), std::vector<Tensor>(parameters_.size()));
  absl::Status status = Allocate(0);
  if (!status.ok()) slices_.clear();  // so that a later call tries again
  return status;
}

absl::Status StateBuffers::Allocate(size_t first) {
  std::set<std::pair<Device*, DType>> kinds;
  for (size_t i = first; i < parameters_.size(); ++i) {
    kinds.emplace(parameters_[i]->device, parameters_[i]->data.dtype());
  }
  for (const auto& [device, dtype] : kinds) FSDP_RETURN_IF_ERROR(AllocateOn(*device, dtype, first));
  return absl::OkStatus();
}

// Parameters of one optimizer may be on two devices (offloaded units in host memory), and a slice must be on the device
// of its parameter.
absl::Status StateBuffers::AllocateOn(Device& device, DType dtype, size_t first) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.CreateStream("optimizer state"));
  for (size_t state = 0; state < slices_.size(); ++state) {
    std::vector<std::pair<size_t, Interval>> places;  // of the parameters, by index
    int64_t end = 0;
    for (size_t i = first; i < parameters_.size(); ++i) {
      if (parameters_[i]->device != &device || parameters_[i]->data.dtype() != dtype || !has(state, i)) continue;
      const int64_t begin = end;
      const std::optional<Shape> factor = FactorShape(names_[state], parameters_[i]->shape);
      end += factor ? factor->numel() : parameters_[i]->interval.size();
      places.push_back({i, {begin, end}});
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor buffer, Tensor::Empty(device, dtype, {end}));
    device.ops().Zero(buffer, *stream);
    for (const auto& [i, place] : places) slices_[state][i] = buffer.Slice(place);
  }
  return stream->Synchronize();
}

}  // namespace fsdp
