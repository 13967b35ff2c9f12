// SPDX-License-Identifier: Apache-2.0
//
// Loading exchanges tensors in an order that all ranks must share, but a state dict has the order in which the program
// built it. So rank 0's list of entries is the order: sent as msgpack, which carries scalars' bytes exactly. kFull and
// kLocal exchange nothing and use each rank's own list.
#include "fsdp/fsdp/state/optim_entries.h"

#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

std::string Encode(const OptimEntries& entries) {
  Json list = Json::array();
  for (const OptimEntry& entry : entries.entries) {
    const std::vector<int64_t> dims(entry.shape.dims().begin(), entry.shape.dims().end());
    list.push_back(Json::array({entry.fqn, entry.state, std::string(DTypeName(entry.dtype)), dims,
                                Json::binary(std::vector<std::uint8_t>(entry.scalar.begin(), entry.scalar.end()))}));
  }
  Json all = {{"entries", std::move(list)}};
  if (entries.param_groups) all["param_groups"] = *entries.param_groups;
  const std::vector<std::uint8_t> packed = Json::to_msgpack(all);
  return std::string(packed.begin(), packed.end());
}

// Reads what Encode wrote on another rank.
absl::StatusOr<OptimEntries> Decode(const std::string& blob) {
  const Json all = Json::from_msgpack(blob, /*strict=*/true, /*allow_exceptions=*/false);
  if (!all.is_object() || !all.contains("entries")) {
    return absl::FailedPreconditionError("a rank sent no optimizer state; ranks must load at the same time");
  }
  OptimEntries entries;
  for (const Json& row : all["entries"]) {
    OptimEntry entry;
    entry.fqn = row[0].get<std::string>();
    entry.state = row[1].get<std::string>();
    FSDP_ASSIGN_OR_RETURN(entry.dtype, ParseDType(row[2].get<std::string>()));
    FSDP_ASSIGN_OR_RETURN(entry.shape, Shape::Create(row[3].get<std::vector<int64_t>>()));
    const Json::binary_t& bytes = row[4].get_binary();
    entry.scalar.assign(bytes.begin(), bytes.end());
    entries.entries.push_back(std::move(entry));
  }
  if (all.contains("param_groups")) entries.param_groups = all["param_groups"].get<std::string>();
  return entries;
}

// Rank 0's entries decide: a rank may have more, but not fewer, because all ranks exchange rank 0's list.
absl::Status CheckHasAll(size_t rank, const OptimEntries& theirs, const OptimEntries& first) {
  std::set<std::pair<std::string, std::string>> names;
  for (const OptimEntry& entry : theirs.entries) names.emplace(entry.fqn, entry.state);
  for (const OptimEntry& entry : first.entries) {
    if (names.count({entry.fqn, entry.state}) != 0) continue;
    return absl::FailedPreconditionError(absl::StrCat("optimizer state of \"", entry.fqn, "\": rank ", rank, " lacks ",
                                                      entry.state, ", which rank 0 has"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> OptimEntry::Value() const {
  double value = 0;
  if (!is_scalar() || scalar.size() != static_cast<size_t>(SizeOf(dtype)) ||
      !Convert(dtype, scalar.data(), DType::kFloat64, &value, 1).ok()) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state \"", key().ToString(), "\" is no scalar number: ",
                                                   std::string(DTypeName(dtype)), " ", shape.ToString()));
  }
  return value;
}

Tensor HostScalar(DType dtype, const std::string& bytes) {
  // The buffer owns the bytes, so that work on a stream may read them after the caller has returned.
  auto* memory = new std::string(bytes);
  return Tensor(Buffer(memory->data(), static_cast<int64_t>(memory->size()), [memory] { delete memory; }), dtype, {1});
}

Tensor HostScalar(float value) {
  return HostScalar(DType::kFloat32, std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}

OptimEntries EntriesOf(const StateDict& state) {
  OptimEntries entries;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (key.section != StateKey::Section::kOptimState || tensor == nullptr) continue;
    OptimEntry entry{key.fqn, key.state, tensor->dtype, tensor->shape, ""};
    // Scalars travel in the list, because a scalar's element may be on one rank only.
    if (entry.is_scalar() && !tensor->shards.empty()) {
      const Tensor& data = tensor->shards[0].data;
      entry.scalar.assign(data.data_as<const char>(), data.nbytes());
    }
    entries.entries.push_back(std::move(entry));
  }
  if (const std::string* groups = state.FindText(StateKey::ParamGroups())) entries.param_groups = *groups;
  return entries;
}

absl::StatusOr<OptimEntries> AgreeOnEntries(const AllRanks& ranks, const StateDict& state, StateSource from) {
  OptimEntries mine = EntriesOf(state);
  if (from == StateSource::kFull || from == StateSource::kLocal) return mine;
  // Other ranks' state dicts are ignored, but they take part in the exchange.
  if (from == StateSource::kFullFirst && ranks.rank() != 0) mine = OptimEntries();
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, ranks.AllGatherObject(Encode(mine)));
  FSDP_ASSIGN_OR_RETURN(OptimEntries first, Decode(blobs[0]));
  if (from == StateSource::kFullFirst) return first;
  for (size_t rank = 1; rank < blobs.size(); ++rank) {
    FSDP_ASSIGN_OR_RETURN(const OptimEntries theirs, Decode(blobs[rank]));
    FSDP_RETURN_IF_ERROR(CheckHasAll(rank, theirs, first));
  }
  return first;
}

}  // namespace fsdp
