// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/save_plan.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

absl::Status Refused(const StateKey& key, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(Describe(key), ": ", why));
}

absl::Status CheckShard(const StateKey& key, const ShardedTensor& tensor, const ShardedTensor::Shard& shard) {
  const Interval& interval = shard.interval;
  // An empty shard is refused too: HeldInterval takes an empty interval for "no shard so far".
  if (interval.begin < 0 || interval.begin >= interval.end || interval.end > tensor.shape.numel()) {
    return Refused(key, absl::StrCat("shard ", interval.ToString(), " of ", tensor.shape.numel(), " elements"));
  }
  if (!shard.data.defined()) return Refused(key, absl::StrCat("shard ", interval.ToString(), " has no data"));
  if (shard.data.dtype() != tensor.dtype || shard.data.numel() != interval.size()) {
    return Refused(key, absl::StrCat("shard ", interval.ToString(), " has ", shard.data.numel(), " elements of ",
                                     std::string(DTypeName(shard.data.dtype())), ", expected ", interval.size(), " of ",
                                     std::string(DTypeName(tensor.dtype))));
  }
  return absl::OkStatus();
}

// The one interval that the shards form together. Shards must be in order and without gaps: a rank file has one dataset
// for a tensor, so a rank saves one run of its elements.
absl::StatusOr<Interval> HeldInterval(const StateKey& key, const ShardedTensor& tensor) {
  Interval held;
  for (const ShardedTensor::Shard& shard : tensor.shards) {
    FSDP_RETURN_IF_ERROR(CheckShard(key, tensor, shard));
    if (held.empty()) held = {shard.interval.begin, shard.interval.begin};
    if (shard.interval.begin != held.end) {
      return Refused(key, absl::StrCat("shard ", shard.interval.ToString(), " does not follow ", held.ToString(),
                                       "; a rank saves one run of elements of a tensor"));
    }
    held.end = shard.interval.end;
  }
  return held;
}

// The elements `wanted`: their address in the shard that has all of them, else copied from several shards to `scratch`.
absl::StatusOr<const std::byte*> ReadShards(const ShardedTensor& tensor, const Interval& wanted, std::byte* scratch) {
  // The usual case, one shard, returns its memory: the writer then writes without a copy.
  const int64_t size = SizeOf(tensor.dtype);
  for (const ShardedTensor::Shard& shard : tensor.shards) {
    const auto* data = shard.data.data_as<const std::byte>();
    if (shard.interval.Contains(wanted)) return data + (wanted.begin - shard.interval.begin) * size;
    const Interval part = Intersect(shard.interval, wanted);
    if (part.empty()) continue;
    std::memcpy(scratch + (part.begin - wanted.begin) * size, data + (part.begin - shard.interval.begin) * size,
                part.size() * size);
  }
  return scratch;
}

// Checks that apply to sharded and whole tensors.
absl::Status CheckTensor(const StateKey& key, const ShardedTensor& tensor) {
  if (key.section == StateKey::Section::kParamGroups) return Refused(key, "param_groups are a text");
  // Checked before the layout, because HDF5 would fail there with an error that names no tensor.
  if (tensor.shape.rank() > kMaxHdf5Rank) {
    return Refused(key, absl::StrCat(tensor.shape.rank(), " dimensions, more than HDF5's ", kMaxHdf5Rank));
  }
  return absl::OkStatus();
}

// The interval of `tensor` that this rank writes.
absl::StatusOr<Interval> WrittenInterval(const StateKey& key, const ShardedTensor& tensor, StateDictType type) {
  FSDP_ASSIGN_OR_RETURN(const Interval held, HeldInterval(key, tensor));
  // A copy keeps its entry with no elements: the rank file still names every tensor of the state.
  if (type != StateDictType::kFull) return tensor.replica == 0 ? held : Interval{};
  if (held == Interval{0, tensor.shape.numel()}) return held;
  return Refused(key, absl::StrCat("a FULL state dict holds whole tensors, but this one ", held.ToString(), " of ",
                                   tensor.shape.numel(), " elements"));
}

absl::Status AddText(const StateKey& key, const std::string& text, SavePlan& plan) {
  if (key.section != StateKey::Section::kParamGroups && key.section != StateKey::Section::kExtra) {
    return Refused(key, "a text can only be param_groups or an extra value");
  }
  FSDP_RETURN_IF_ERROR(CheckUtf8(text, absl::StrCat("text ", Quote(key.ToString()))));
  if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
    return Refused(key, absl::StrCat("a text of ", text.size(), " bytes, more than ", kMaxTextBytes));
  }
  plan.texts.push_back({key, text});
  return absl::OkStatus();
}

absl::Status AddAliases(const StateDict& state, SavePlan& plan) {
  std::map<std::string, TreeFile::TensorPart*> model;
  for (TreeFile::TensorPart& tensor : plan.tensors) {
    if (tensor.key.section == StateKey::Section::kModel) model[tensor.key.fqn] = &tensor;
  }
  for (const auto& [alias, fqn] : state.aliases) {
    // A name must lead to one tensor, so an alias is neither dangling nor the name of another tensor.
    FSDP_RETURN_IF_ERROR(CheckTensorName(alias));
    const auto target = model.find(fqn);
    if (target == model.end() || model.count(alias) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "alias ", Quote(alias), " of ", Quote(fqn),
          target == model.end() ? ", which is not a tensor of the model" : " is a tensor of the model too"));
    }
    target->second->aliases.push_back(alias);
  }
  return absl::OkStatus();
}

absl::Status CheckUnits(const StateDict& state) {
  for (const FlatUnitLayout& unit : state.units) {
    FSDP_RETURN_IF_ERROR(CheckUtf8(unit.name, absl::StrCat("the name of unit ", Quote(unit.name))));
    for (const FlatUnitLayout::Entry& entry : unit.parameters) FSDP_RETURN_IF_ERROR(CheckTensorName(entry.fqn));
  }
  return absl::OkStatus();
}

Digest DigestOfTensors(const SavePlan& plan) {
  std::string all;
  for (const TreeFile::TensorPart& tensor : plan.tensors) {
    const std::string name = tensor.key.ToString();
    // The length first, so that no two lists of tensors give the same text.
    absl::StrAppend(&all, name.size(), " ", name, std::string(DTypeName(tensor.dtype)), tensor.shape.ToString());
  }
  return DigestOf(std::string_view(all));
}

// Adds texts, aliases and attributes. The tensors must be in `plan` already, since aliases name them.
absl::Status AddFacts(const StateDict& state, SavePlan& plan) {
  for (const auto& [key, value] : state.entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) FSDP_RETURN_IF_ERROR(AddText(key, *text, plan));
  }
  FSDP_RETURN_IF_ERROR(AddAliases(state, plan));
  FSDP_RETURN_IF_ERROR(CheckUnits(state));
  FSDP_RETURN_IF_ERROR(CheckAttributes(state.attributes));
  plan.attributes = state.attributes;
  plan.tensors_digest = DigestOfTensors(plan);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SavePlan> PlanSave(const StateDict& state) {
  SavePlan plan;
  bool is_copy = false;
  bool is_original = false;
  for (const auto& [key, value] : state.entries()) {
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    FSDP_RETURN_IF_ERROR(CheckTensor(key, *tensor));
    FSDP_ASSIGN_OR_RETURN(const Interval written, WrittenInterval(key, *tensor, state.type));
    const ElementReader read = [tensor](const Interval& wanted, std::byte* scratch) {
      return ReadShards(*tensor, wanted, scratch);
    };
    plan.tensors.push_back(
        {.key = key, .dtype = tensor->dtype, .shape = tensor->shape, .interval = written, .read = read});
    (tensor->replica != 0 ? is_copy : is_original) = true;
  }
  // A rank without tensors writes too: ChooseWriters would otherwise find no writer with its (empty) list of tensors.
  plan.is_writer = is_original || !is_copy;
  FSDP_RETURN_IF_ERROR(AddFacts(state, plan));
  return plan;
}

absl::StatusOr<SavePlan> PlanWhole(const StateDict& contents, const PayloadReader& read) {
  SavePlan plan;
  for (const auto& entry : contents.entries()) {
    const StateKey& key = entry.first;
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    const auto* tensor = std::get_if<ShardedTensor>(&entry.second);
    if (tensor == nullptr) continue;
    FSDP_RETURN_IF_ERROR(CheckTensor(key, *tensor));
    // Both references outlive the plan: `read` by contract, `key` as a key of the map in `contents`.
    const ElementReader read_key = [&read, &key](const Interval& wanted,
                                                 std::byte* scratch) -> absl::StatusOr<const std::byte*> {
      FSDP_RETURN_IF_ERROR(read(key, wanted, scratch));
      return scratch;
    };
    plan.tensors.push_back({.key = key,
                            .dtype = tensor->dtype,
                            .shape = tensor->shape,
                            .interval = {0, tensor->shape.numel()},
                            .read = read_key});
  }
  FSDP_RETURN_IF_ERROR(AddFacts(contents, plan));
  return plan;
}

}  // namespace fsdp
