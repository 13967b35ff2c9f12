// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/state_dict.h"

#include <array>
#include <tuple>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr std::array<StateDictType, 3> kTypes = {StateDictType::kFull, StateDictType::kLocal, StateDictType::kSharded};

uint32_t HashOf(const StateKey& key) { return static_cast<uint32_t>(absl::HashOf(key.section, key.fqn, key.state)); }

}  // namespace

std::string_view StateDictTypeName(StateDictType type) {
  switch (type) {
    case StateDictType::kFull:
      return "full";
    case StateDictType::kLocal:
      return "local";
    case StateDictType::kSharded:
      return "sharded";
  }
  CheckFailed("not a StateDictType", __FILE__, __LINE__);
}

absl::StatusOr<StateDictType> ParseStateDictType(std::string_view name) {
  for (StateDictType type : kTypes) {
    if (StateDictTypeName(type) == name) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown state dict type \"", std::string(name), "\"; known: full, local, sharded"));
}

StateKey StateKey::Model(std::string fqn) { return {Section::kModel, std::move(fqn), ""}; }

StateKey StateKey::OptimState(std::string fqn, std::string state) {
  return {Section::kOptimState, std::move(fqn), std::move(state)};
}

StateKey StateKey::ParamGroups() { return {Section::kParamGroups, "", ""}; }

StateKey StateKey::Extra(std::string name) { return {Section::kExtra, std::move(name), ""}; }

std::string StateKey::ToString() const {
  switch (section) {
    case Section::kModel:
      return absl::StrCat("model/", fqn);
    case Section::kOptimState:
      return absl::StrCat("optim/state/", fqn, "/", state);
    case Section::kParamGroups:
      return "optim/param_groups";
    case Section::kExtra:
      return absl::StrCat("extra/", fqn);
  }
  CheckFailed("not a section of a state dict", __FILE__, __LINE__);
}

bool StateKey::operator==(const StateKey& other) const {
  return section == other.section && fqn == other.fqn && state == other.state;
}

bool StateKey::operator<(const StateKey& other) const {
  return std::tie(section, fqn, state) < std::tie(other.section, other.fqn, other.state);
}

// entries_ keeps the order of insertion, in which files are written; slots_ finds a key in it, by linear probing.
// Entries are never removed. absl's hash is seeded by the process, so a file cannot choose names that collide.
size_t StateDict::SlotOf(const StateKey& key, uint32_t hash) const {
  // A power of two, so the mask is the modulus; at most 3/4 full, so probing always finds a free slot.
  const size_t mask = slots_.size() - 1;
  const auto is_of_another = [&](const Slot& slot) {
    return slot.place != 0 && (slot.hash != hash || !(entries_[slot.place - 1].first == key));
  };
  size_t slot = hash & mask;
  while (is_of_another(slots_[slot])) slot = (slot + 1) & mask;
  return slot;
}

void StateDict::GrowSlots(size_t count) {
  if (count <= slots_.size() * 3 / 4) return;
  // Fits 32 bits, as do places: a checkpoint has millions of names at most.
  size_t wanted = 8;
  while (wanted * 3 / 4 < count) wanted *= 2;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(wanted));
  for (const Slot& moved : old) {
    if (moved.place == 0) continue;
    size_t slot = moved.hash & (wanted - 1);
    while (slots_[slot].place != 0) slot = (slot + 1) & (wanted - 1);
    slots_[slot] = moved;
  }
}

void StateDict::Reserve(size_t count) {
  entries_.reserve(count);
  GrowSlots(count);
}

void StateDict::Set(StateKey key, StateValue value) {
  // Before SlotOf, because growing moves every slot.
  GrowSlots(entries_.size() + 1);
  const uint32_t hash = HashOf(key);
  Slot& slot = slots_[SlotOf(key, hash)];
  if (slot.place == 0) {
    entries_.emplace_back(std::move(key), std::move(value));
    slot = {static_cast<uint32_t>(entries_.size()), hash};
  } else {
    entries_[slot.place - 1].second = std::move(value);
  }
}

std::optional<size_t> StateDict::IndexOf(const StateKey& key) const {
  if (slots_.empty()) return std::nullopt;
  const uint32_t place = slots_[SlotOf(key, HashOf(key))].place;
  return place == 0 ? std::nullopt : std::make_optional<size_t>(place - 1);
}

const ShardedTensor* StateDict::FindTensor(const StateKey& key) const {
  const std::optional<size_t> place = IndexOf(key);
  return place ? std::get_if<ShardedTensor>(&entries_[*place].second) : nullptr;
}

const std::string* StateDict::FindText(const StateKey& key) const {
  const std::optional<size_t> place = IndexOf(key);
  return place ? std::get_if<std::string>(&entries_[*place].second) : nullptr;
}

std::optional<StateKey> StateDict::Resolve(const StateKey& key,
                                           const std::map<std::string, std::string>& other_aliases) const {
  if (contains(key)) return key;
  if (key.section != StateKey::Section::kModel && key.section != StateKey::Section::kOptimState) return std::nullopt;
  StateKey candidate = key;
  if (const auto target = aliases.find(key.fqn); target != aliases.end()) {
    candidate.fqn = target->second;
    if (contains(candidate)) return candidate;
  }
  // The other state's own name of the parameter is `key`; this state may hold it under an alias that only the other
  // state knows.
  for (const auto& [alias, target] : other_aliases) {
    candidate.fqn = alias;
    if (target == key.fqn && contains(candidate)) return candidate;
  }
  return std::nullopt;
}

}  // namespace fsdp
