// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/c_api/c_state.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/c_api/c_status.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

// The key that StateKey::ToString writes as `name`. Names of optimizer states have no '/', names of parameters may.
absl::StatusOr<StateKey> KeyOf(const char* given) {
  FSDP_RETURN_IF_ERROR(CheckPointer(given, "name"));
  absl::string_view name = given;
  StateKey key;
  if (name == "optim/param_groups") return StateKey::ParamGroups();
  if (absl::ConsumePrefix(&name, "model/")) {
    key = StateKey::Model(std::string(name));
  } else if (absl::ConsumePrefix(&name, "extra/")) {
    key = StateKey::Extra(std::string(name));
  } else if (absl::ConsumePrefix(&name, "optim/state/") && absl::StrContains(name, "/")) {
    // State names contain no slash, so the last one separates them from the parameter's name.
    const size_t slash = name.rfind('/');
    key = StateKey::OptimState(std::string(name.substr(0, slash)), std::string(name.substr(slash + 1)));
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "name ", Quote(given), " is not one of model/NAME, optim/state/NAME/STATE, optim/param_groups and extra/NAME"));
  }
  FSDP_RETURN_IF_ERROR(CheckStateKey(key));
  return key;
}

absl::Status CheckNew(const StateDict& state, const StateKey& key) {
  // Set would replace the value silently, and with it the caller's mistake.
  if (!state.contains(key)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("the state has ", Quote(key.ToString()), " already"));
}

// Arrays of the caller have as many entries as their count says, so a count that nothing could be saved with is refused
// before the first entry is read: it is more likely garbage than an array of that length.
constexpr int64_t kMaxDims = 32;                          // HDF5's
constexpr int64_t kMaxUnitParameters = int64_t{1} << 24;  // a manifest that names more would be too large

absl::Status CheckCount(int64_t count, int64_t most, const char* name, const void* pointer, const char* array) {
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat(name, " is ", count, ", wanted at least 0"));
  if (count > most) return absl::InvalidArgumentError(absl::StrCat(name, " is ", count, ", wanted at most ", most));
  return count == 0 ? absl::OkStatus() : CheckPointer(pointer, array);
}

absl::StatusOr<ShardedTensor> TensorOf(const std::string& name, int32_t dtype, absl::Span<const int64_t> dims,
                                       absl::Span<const fsdp_shard> shards) {
  if (fsdp_dtype_size(dtype) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": ", dtype, " is not an fsdp_dtype"));
  }
  ShardedTensor tensor;
  tensor.dtype = static_cast<DType>(dtype);
  FSDP_ASSIGN_OR_RETURN(tensor.shape, Shape::Create(dims));
  // Shards are disjoint and not empty.
  if (static_cast<int64_t>(shards.size()) > tensor.shape.numel()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": shard_count is ", shards.size(),
                                                   ", wanted at most its ", tensor.shape.numel(), " elements"));
  }
  int64_t last = 0;
  for (const fsdp_shard& shard : shards) {
    if (shard.begin < last || shard.end <= shard.begin || shard.end > tensor.shape.numel()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": shard [", shard.begin, ", ", shard.end,
                                                     ") is empty, overlaps the previous one, or exceeds the ",
                                                     tensor.shape.numel(), " elements"));
    }
    FSDP_RETURN_IF_ERROR(CheckPointer(shard.data, "fsdp_shard.data"));
    const int64_t numel = shard.end - shard.begin;
    if (numel > std::numeric_limits<int64_t>::max() / SizeOf(tensor.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": shard [", shard.begin, ", ", shard.end,
                                                     ") has more bytes than there are addresses"));
    }
    // Saving only reads, so casting const away is safe.
    Buffer buffer = Buffer::Unowned(const_cast<void*>(shard.data), numel * SizeOf(tensor.dtype));
    tensor.shards.push_back({{shard.begin, shard.end}, Tensor(std::move(buffer), tensor.dtype, {numel})});
    // Only order is checked here: a gap between a rank's shards is refused by the save (save_plan.cc).
    last = shard.end;
  }
  return tensor;
}

// Errors of a reader are about a damaged file; here they are the caller's.
absl::StatusOr<RunMetadata> AttributesOf(const char* given) {
  FSDP_RETURN_IF_ERROR(CheckPointer(given, "json"));
  const absl::StatusOr<nlohmann::json> json = ParseJson(given);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat("attributes: ", json.status().message()));
  absl::StatusOr<RunMetadata> attributes = DecodeAttributes(*json);
  if (!attributes.ok()) return absl::InvalidArgumentError(attributes.status().message());
  return attributes;
}

// Parameters must be in order, disjoint, and inside the flat parameter.
absl::Status CheckLayout(const FlatUnitLayout& unit) {
  if (unit.unsharded_numel < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit ", Quote(unit.name), " has ", unit.unsharded_numel, " elements, wanted at least 0"));
  }
  int64_t last = 0;
  for (const FlatUnitLayout::Entry& entry : unit.parameters) {
    // Subtraction, not addition: offset + numel of a caller may overflow. After this check `last` cannot.
    if (entry.offset < last || entry.numel < 0 || entry.offset > unit.unsharded_numel ||
        entry.numel > unit.unsharded_numel - entry.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unit ", Quote(unit.name), ": parameter ", Quote(entry.fqn), " has ", entry.numel, " elements at ",
          entry.offset, ", wanted at least ", last, ", and all below ", unit.unsharded_numel));
    }
    last = entry.offset + entry.numel;
  }
  return absl::OkStatus();
}

}  // namespace

// Checked by a save, not by fsdp_state_add_unit, since units and tensors may be added in any order.
absl::Status CheckUnitsOf(const StateDict& state) {
  for (const FlatUnitLayout& unit : state.units) {
    for (const FlatUnitLayout::Entry& entry : unit.parameters) {
      const ShardedTensor* const tensor = state.FindTensor(StateKey::Model(entry.fqn));
      if (tensor != nullptr && tensor->shape.numel() == entry.numel) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("unit ", Quote(unit.name), ": parameter ", Quote(entry.fqn), " has ", entry.numel, " elements, ",
                       tensor == nullptr ? "and the state has no such tensor"
                                         : absl::StrCat("and in the state ", tensor->shape.numel())));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp

int32_t fsdp_state_create(int32_t kind, fsdp_state** state) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(state, "state"));
    if (kind != FSDP_FULL && kind != FSDP_LOCAL && kind != FSDP_SHARDED) {
      return absl::InvalidArgumentError(absl::StrCat(kind, " is not an fsdp_kind"));
    }
    *state = new fsdp_state;
    (*state)->state.type = static_cast<fsdp::StateDictType>(kind);
    return absl::OkStatus();
  });
}

void fsdp_state_free(fsdp_state* state) { delete state; }

int32_t fsdp_state_add_tensor(fsdp_state* state, const char* name, int32_t dtype, int32_t ndim, const int64_t* dims,
                              const fsdp_shard* shards, int64_t shard_count) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(state, "state"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckCount(ndim, fsdp::kMaxDims, "ndim", dims, "dims"));
    // TensorOf compares it with the number of elements.
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    FSDP_RETURN_IF_ERROR(fsdp::CheckCount(shard_count, kMost, "shard_count", shards, "shards"));
    FSDP_ASSIGN_OR_RETURN(fsdp::StateKey key, fsdp::KeyOf(name));
    FSDP_RETURN_IF_ERROR(fsdp::CheckNew(state->state, key));
    FSDP_ASSIGN_OR_RETURN(fsdp::ShardedTensor tensor,
                          fsdp::TensorOf(name, dtype, absl::MakeSpan(dims, static_cast<size_t>(ndim)),
                                         absl::MakeSpan(shards, static_cast<size_t>(shard_count))));
    state->state.Set(std::move(key), std::move(tensor));
    return absl::OkStatus();
  });
}

int32_t fsdp_state_add_text(fsdp_state* state, const char* name, const char* text, int64_t bytes) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(state, "state"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckCount(bytes, fsdp::kMaxTextBytes, "bytes", text, "text"));
    FSDP_ASSIGN_OR_RETURN(fsdp::StateKey key, fsdp::KeyOf(name));
    FSDP_RETURN_IF_ERROR(fsdp::CheckNew(state->state, key));
    // NULL passes CheckCount only with 0 bytes.
    std::string value(text == nullptr ? "" : text, static_cast<size_t>(bytes));
    FSDP_RETURN_IF_ERROR(fsdp::CheckUtf8(value, absl::StrCat("text ", name)));
    state->state.Set(std::move(key), std::move(value));
    return absl::OkStatus();
  });
}

int32_t fsdp_state_add_alias(fsdp_state* state, const char* alias, const char* name) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(state, "state"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(alias, "alias"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(name, "name"));
    // Names are checked by the save (AddAliases), when all tensors are known.
    state->state.aliases[alias] = name;
    return absl::OkStatus();
  });
}

int32_t fsdp_state_set_attributes(fsdp_state* state, const char* json) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(state, "state"));
    FSDP_ASSIGN_OR_RETURN(state->state.attributes, fsdp::AttributesOf(json));
    return absl::OkStatus();
  });
}

int32_t fsdp_state_add_unit(fsdp_state* state, const char* name, int64_t unsharded_numel, int64_t count,
                            const char* const* fqns, const int64_t* offsets, const int64_t* numels) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(state, "state"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(name, "name"));
    constexpr int64_t kMost = fsdp::kMaxUnitParameters;
    FSDP_RETURN_IF_ERROR(fsdp::CheckCount(count, kMost, "count", fqns, "fqns"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckCount(count, kMost, "count", offsets, "offsets"));
    FSDP_RETURN_IF_ERROR(fsdp::CheckCount(count, kMost, "count", numels, "numels"));
    fsdp::FlatUnitLayout unit;
    unit.name = name;
    unit.unsharded_numel = unsharded_numel;
    for (int64_t i = 0; i < count; ++i) {
      FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(fqns[i], "fqns[i]"));
      unit.parameters.push_back({fqns[i], offsets[i], numels[i]});
    }
    FSDP_RETURN_IF_ERROR(fsdp::CheckLayout(unit));
    state->state.units.push_back(std::move(unit));
    return absl::OkStatus();
  });
}
