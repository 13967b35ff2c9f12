// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/stacks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/stacked_name.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

// The tensors that one key would have.
struct Group {
  std::string key;
  std::vector<std::pair<std::vector<int64_t>, const StateDict::Entry*>> members;
};

std::string NameOf(const StateDict::Entry& entry) {
  return absl::StrReplaceAll(entry.first.fqn, {{".experts.local_experts.", ".experts.experts."}});
}

// "decoder.layers." of a name with a layer's number; empty for other names.
std::string BlockOf(const std::string& name) {
  std::vector<int64_t> with;
  std::vector<int64_t> without;
  const std::string key = StackedKey(name, true, with);
  if (key == StackedKey(name, false, without)) return "";
  return absl::StrCat(StackedName::Of(key).Stack(0), ".");
}

// In the order of the first tensor of each. `whole_blocks`: the blocks whose layers are stacked.
// Tensors whose names differ only in numbers of layers and experts are one stack, if none is missing and all are alike.
std::vector<Group> GroupsOf(const std::vector<const StateDict::Entry*>& entries,
                            const std::map<std::string, bool>& whole_blocks) {
  std::vector<Group> groups;
  absl::flat_hash_map<std::string, size_t> index;
  for (const StateDict::Entry* entry : entries) {
    const std::string name = NameOf(*entry);
    const auto block = whole_blocks.find(BlockOf(name));
    std::vector<int64_t> at;
    std::string key = StackedKey(name, block == whole_blocks.end() || block->second, at);
    const auto [found, is_new] = index.try_emplace(key, groups.size());
    if (is_new) groups.push_back({std::move(key), {}});
    groups[found->second].members.emplace_back(std::move(at), entry);
  }
  return groups;
}

// The lengths of the axes along which the members are numbered from 0 without a gap; nullopt if they are not, or are
// not alike.
std::optional<std::vector<int64_t>> LengthsOf(const Group& group) {
  const auto& first = std::get<ShardedTensor>(group.members[0].second->second);
  const size_t axes = group.members[0].first.size();
  std::vector<int64_t> lengths(axes, 0);
  for (const auto& [at, entry] : group.members) {
    const auto& tensor = std::get<ShardedTensor>(entry->second);
    if (at.size() != axes || tensor.dtype != first.dtype || tensor.shape != first.shape) return std::nullopt;
    for (size_t axis = 0; axis < axes; ++axis) lengths[axis] = std::max(lengths[axis], at[axis] + 1);
  }
  int64_t count = 1;
  for (const int64_t length : lengths) {
    if (length > std::ssize(group.members)) return std::nullopt;
    count *= length;
  }
  // Names are distinct, so as many members as places are one for each.
  return count == std::ssize(group.members) ? std::make_optional(lengths) : std::nullopt;
}

// False for each block of which a tensor is not in every layer, or whose tensors differ in the number of layers.
std::map<std::string, bool> WholeBlocks(const std::vector<const StateDict::Entry*>& entries) {
  std::map<std::string, bool> whole;
  std::map<std::string, int64_t> layers;
  for (const Group& group : GroupsOf(entries, {})) {
    const std::string block = BlockOf(NameOf(*group.members[0].second));
    if (block.empty()) continue;
    const std::optional<std::vector<int64_t>> lengths = LengthsOf(group);
    const bool is_whole = lengths && layers.try_emplace(block, lengths->front()).first->second == lengths->front();
    whole[block] = whole.try_emplace(block, true).first->second && is_whole;
  }
  return whole;
}

absl::Status CheckKey(const Group& group, size_t axes) {
  const bool is_stack = StackedName::Of(group.key).axes() != static_cast<int>(axes);
  const bool is_optimizer = absl::StartsWith(group.key, "optimizer.") || absl::StartsWith(group.key, "chained_");
  if (!is_stack && !is_optimizer && !absl::EndsWith(group.key, "_extra_state")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(group.members[0].second->first),
                                                 " would be read by Megatron-Core as ",
                                                 is_stack       ? "a stack of layers or experts"
                                                 : is_optimizer ? "an optimizer's state"
                                                                : "the state of a module",
                                                 ": choose another name with --rename"));
}

}  // namespace

absl::StatusOr<std::vector<Stack>> StacksOf(const StateDict& contents) {
  std::vector<const StateDict::Entry*> entries;
  for (const StateDict::Entry& entry : contents.entries()) {
    const bool is_model = entry.first.section == StateKey::Section::kModel;
    if (!is_model || !std::holds_alternative<ShardedTensor>(entry.second)) continue;
    if (contents.aliases.count(entry.first.fqn) == 0) entries.push_back(&entry);
  }
  std::vector<Stack> stacks;
  for (Group& group : GroupsOf(entries, WholeBlocks(entries))) {
    const std::optional<std::vector<int64_t>> lengths = LengthsOf(group);
    if (!lengths) {  // experts that differ
      for (const auto& [at, entry] : group.members) stacks.push_back({NameOf(*entry), {}, {entry}});
      continue;
    }
    FSDP_RETURN_IF_ERROR(CheckKey(group, lengths->size()));
    std::sort(group.members.begin(), group.members.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    Stack& stack = stacks.emplace_back(Stack{std::move(group.key), *lengths, {}});
    for (const auto& [at, entry] : group.members) stack.members.push_back(entry);
  }
  return stacks;
}

}  // namespace fsdp
