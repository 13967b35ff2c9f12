// SPDX-License-Identifier: Apache-2.0
//
// Both directions go over one list of the module's tensors, each once, under its first name and with all others. A load
// checks every tensor before it copies the first, so an error leaves the module as it was.
#include "fsdp/fsdp/module_state.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/parameter_init.h"

namespace fsdp {
namespace {

// A parameter or a persistent buffer.
struct PlainTensor {
  std::vector<std::string> names;  // the first is its own
  Parameter* parameter = nullptr;
  ModuleBuffer* buffer = nullptr;

  const Tensor& data() const { return parameter != nullptr ? parameter->data : buffer->data; }
  // The shape of this rank's memory, and of the whole tensor, of which tensor-parallel layers have a part.
  const Shape& shape() const { return parameter != nullptr ? parameter->shape : buffer->data.shape(); }
  const Shape& whole_shape() const { return parameter != nullptr ? parameter->whole_shape() : shape(); }
  bool is_part() const { return parameter != nullptr && parameter->part.has_value(); }
  std::vector<IntervalCopy> runs() const {
    return RunsInWhole(shape(), *parameter->part, Interval{0, shape().numel()});
  }
  DType dtype() const { return data().defined() ? data().dtype() : parameter->dtype; }
};

// FullyShard itself changes no parameter: these are sharded at the root's first use, when an executor takes the hooks.
absl::Status CheckPlain(Module& module) {
  for (const auto& [name, below] : module.NamedModules()) {
    if (dynamic_cast<const Executor*>(below->hooks()) == nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("module \"", name, "\", a ", std::string(below->type_name()),
                                                      ", is sharded: expected a plain module; use LoadStateDict of "
                                                      "the model that it belongs to"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlainTensor>> TensorsOf(Module& module) {
  std::vector<PlainTensor> tensors;
  std::map<const void*, size_t> known;
  const auto add = [&](const std::string& name, Parameter* parameter, ModuleBuffer* buffer) {
    // By address, so that a shared tensor is one entry with all of its names.
    const void* const address = parameter != nullptr ? static_cast<const void*>(parameter) : buffer;
    const auto [place, added] = known.emplace(address, tensors.size());
    if (added) tensors.push_back({{}, parameter, buffer});
    tensors[place->second].names.push_back(name);
  };
  for (const auto& [name, parameter] : module.NamedParameters()) add(name, parameter.get(), nullptr);
  for (const auto& [name, buffer] : module.NamedBuffers()) {
    if (buffer->persistence == BufferPersistence::kNonPersistent) continue;
    if (!buffer->data.defined())
      return absl::FailedPreconditionError(absl::StrCat("buffer \"", name, "\" has no memory"));
    add(name, nullptr, buffer.get());
  }
  return tensors;
}

const ShardedTensor* Find(const StateDict& state, const PlainTensor& tensor) {
  for (const std::string& name : tensor.names) {
    // In the order of names: the tensor's own name wins over its aliases.
    if (const ShardedTensor* found = state.FindTensor(StateKey::Model(name))) return found;
  }
  return nullptr;
}

IncompatibleKeys Compare(const std::vector<PlainTensor>& tensors, const StateDict& state) {
  IncompatibleKeys keys;
  std::set<std::string> names;
  for (const PlainTensor& tensor : tensors) {
    names.insert(tensor.names.begin(), tensor.names.end());
    if (Find(state, tensor) == nullptr) keys.missing_keys.push_back(tensor.names[0]);
  }
  for (const auto& [key, value] : state.entries()) {
    if (key.section == StateKey::Section::kModel && names.count(key.fqn) == 0) keys.unexpected_keys.push_back(key.fqn);
  }
  return keys;
}

absl::Status CheckTensor(const PlainTensor& tensor, const ShardedTensor& source) {
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.names[0], "\": ", why));
  };
  if (source.shape != tensor.whole_shape()) {
    return refused(absl::StrCat("shape ", source.shape.ToString(),
                                " in the state dict != ", tensor.whole_shape().ToString(), " in the module"));
  }
  const bool floats = IsFloatingPoint(source.dtype) && IsFloatingPoint(tensor.dtype());
  if (source.dtype != tensor.dtype() && !floats) {
    return refused(absl::StrCat("dtype ", std::string(DTypeName(source.dtype)), " in the state dict cannot become ",
                                std::string(DTypeName(tensor.dtype()))));
  }
  const Interval all{0, source.shape.numel()};
  if (all.empty()) return absl::OkStatus();
  const bool whole = source.shards.size() == 1 && source.shards[0].interval == all;
  // Also checks the memory, because a state dict that only describes tensors has shapes without data.
  if (whole && source.shards[0].data.defined() && source.shards[0].data.numel() == all.size()) return absl::OkStatus();
  return refused(absl::StrCat("the state dict has not all of its elements ", all.ToString(),
                              " in one piece: expected a FULL state dict"));
}

// `whole`'s elements that `tensor` has, in host memory. Blocks.
absl::StatusOr<Tensor> PartOf(const Tensor& whole, const PlainTensor& tensor, Device& device, Stream& stream) {
  const int64_t nbytes = tensor.shape().numel() * SizeOf(whole.dtype());
  FSDP_ASSIGN_OR_RETURN(Buffer buffer, device.AllocatePinned(nbytes));
  const Tensor part(std::move(buffer), whole.dtype(), tensor.shape());
  for (const IntervalCopy& run : tensor.runs()) {
    const Tensor from = whole.Slice({run.to, run.to + run.numel});
    stream.CopyAsync(part.Slice({run.from, run.from + run.numel}).data(), from.data(), from.nbytes());
  }
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return part;
}

// The tensor (or part of a tensor) of `tensor`, as a view of its live memory.
ShardedTensor Live(const PlainTensor& tensor) {
  const Tensor& data = tensor.data();
  if (!tensor.is_part()) return ShardedTensor::Whole(data);
  ShardedTensor live;
  live.dtype = data.dtype();
  live.shape = tensor.whole_shape();
  for (const IntervalCopy& run : tensor.runs()) {
    live.shards.push_back({{run.to, run.to + run.numel}, data.Slice({run.from, run.from + run.numel})});
  }
  return live;
}

// Through host memory, as a parameter's own first values.
absl::Status Copy(const ShardedTensor& source, const PlainTensor& tensor, Device& device, Stream& stream) {
  // Only a parameter can be without memory: TensorsOf refuses such buffers.
  if (!tensor.data().defined()) {
    FSDP_ASSIGN_OR_RETURN(tensor.parameter->data, Tensor::Empty(device, tensor.parameter->dtype, tensor.shape()));
  }
  if (source.shards.empty()) return absl::OkStatus();
  Parameter values;
  // CopyInitialValues takes a parameter that has memory, so the seed is not used.
  values.data = source.shards[0].data;
  if (tensor.is_part()) {
    FSDP_ASSIGN_OR_RETURN(values.data, PartOf(values.data, tensor, device, stream));
  }
  return CopyInitialValues(values, Interval{0, tensor.shape().numel()}, /*seed=*/0, tensor.data(), stream);
}

}  // namespace

absl::StatusOr<StateDict> GetModuleState(Module& module) {
  FSDP_RETURN_IF_ERROR(CheckPlain(module));
  FSDP_ASSIGN_OR_RETURN(const std::vector<PlainTensor> tensors, TensorsOf(module));
  StateDict state;
  state.type = StateDictType::kFull;
  for (const PlainTensor& tensor : tensors) {
    if (!tensor.data().defined()) {
      return absl::FailedPreconditionError(absl::StrCat("parameter \"", tensor.names[0],
                                                        "\" has no memory, so no state dict can hold it; call "
                                                        "Module::Materialize first"));
    }
    // The runs of a part are not the whole tensor, so the state dict is not FULL.
    if (tensor.is_part()) state.type = StateDictType::kSharded;
    state.Set(StateKey::Model(tensor.names[0]), Live(tensor));
    for (size_t i = 1; i < tensor.names.size(); ++i) state.aliases[tensor.names[i]] = tensor.names[0];
  }
  return state;
}

absl::StatusOr<IncompatibleKeys> LoadModuleState(Module& module, const StateDict& state, Device& device,
                                                 const LoadStateDictOptions& options) {
  if (options.broadcast_from_rank0) {
    return absl::InvalidArgumentError(
        "LoadModuleState: broadcast_from_rank0 is for models that are wrapped; wrap with sync_module_states instead");
  }
  FSDP_RETURN_IF_ERROR(CheckPlain(module));
  FSDP_ASSIGN_OR_RETURN(const std::vector<PlainTensor> tensors, TensorsOf(module));
  // Everything is checked before the first copy, so that a refused state dict changes nothing.
  for (const PlainTensor& tensor : tensors) {
    const ShardedTensor* source = Find(state, tensor);
    if (source != nullptr) FSDP_RETURN_IF_ERROR(CheckTensor(tensor, *source));
  }
  IncompatibleKeys keys = Compare(tensors, state);
  if (options.strict) FSDP_RETURN_IF_ERROR(keys.ToStatus("state dict"));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("load"));
  for (const PlainTensor& tensor : tensors) {
    const ShardedTensor* source = Find(state, tensor);
    if (source != nullptr) FSDP_RETURN_IF_ERROR(Copy(*source, tensor, device, *stream));
  }
  return keys;
}

}  // namespace fsdp
