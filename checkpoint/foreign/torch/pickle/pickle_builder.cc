// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_builder.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

using Kind = PickleKind;

uint32_t PickleBuilder::Add(Kind kind) {
  Pickle::Node& node = pickle_.nodes_.emplace_back();
  node.kind = kind;
  node.place = static_cast<uint32_t>(input_.opcode_at());
  node.begin = static_cast<uint32_t>(pickle_.items_.size());
  return static_cast<uint32_t>(pickle_.nodes_.size() - 1) + Pickle::kFirstNode;
}

uint32_t PickleBuilder::Items(Kind kind, std::initializer_list<uint32_t> items) {
  const uint32_t id = Add(kind);
  pickle_.items_.insert(pickle_.items_.end(), items);
  pickle_.nodes_.back().size = static_cast<uint32_t>(items.size());
  return id;
}

uint32_t PickleBuilder::Items(Kind kind, const Ids& stack, size_t first) {
  const uint32_t id = Add(kind);
  for (size_t i = first; i < stack.size(); ++i) pickle_.items_.push_back(stack[i]);
  pickle_.nodes_.back().size = static_cast<uint32_t>(stack.size() - first);
  return id;
}

uint32_t PickleBuilder::Persistent(uint32_t name) {
  const uint32_t id = Items(Kind::kPersistent, {name});
  pickle_.persistent_.push_back(id);
  return id;
}

// The items of a value are consecutive. The last value's items grow in place; other values' items move to the end, with
// room for as many again, and leave their old place unused.
void PickleBuilder::MakeRoom(Pickle::Node& node, int64_t count) {
  std::deque<uint32_t>& items = pickle_.items_;
  if (count <= (node.room == 0 ? node.size : int64_t{1} << node.room)) return;
  const bool is_last = node.begin + std::max<int64_t>(node.size, node.room == 0 ? 0 : int64_t{1} << node.room) ==
                       static_cast<int64_t>(items.size());
  if (!is_last) {
    const auto begin = static_cast<uint32_t>(items.size());
    for (uint32_t i = 0; i < node.size; ++i) items.push_back(items[node.begin + i]);
    node.begin = begin;
  }
  // Powers of two: moves then cost amortized constant time, and the room fits in a byte.
  node.room = 2;
  while (int64_t{1} << node.room < count) ++node.room;
  items.resize(node.begin + (size_t{1} << node.room));
}

void PickleBuilder::RecordAppend(uint32_t container) {
  constexpr size_t kMost = 32;
  const size_t node = container - Pickle::kFirstNode;
  // Keeps both numbers rising: a container appended to now replaces all entries of younger containers.
  while (!appended_.empty() && appended_.back().container >= node) appended_.pop_back();
  if (appended_.size() == kMost) {
    appended_nodes_ = appended_.front().nodes;
    appended_.erase(appended_.begin());
  }
  appended_.push_back({node, pickle_.nodes_.size()});
}

bool PickleBuilder::OlderWasAppended(size_t first) const {
  if (appended_nodes_ > first) return true;
  const auto older = std::find_if(appended_.rbegin(), appended_.rend(),
                                  [&](const Appended& appended) { return appended.container < first; });
  return older != appended_.rend() && older->nodes > first;
}

void PickleBuilder::Append(uint32_t container, uint32_t item) {
  RecordAppend(container);
  Pickle::Node& node = NodeOf(container);
  MakeRoom(node, int64_t{node.size} + 1);
  pickle_.items_[node.begin + node.size++] = item;
}

void PickleBuilder::Append(uint32_t container, const Ids& stack, size_t first) {
  RecordAppend(container);
  Pickle::Node& node = NodeOf(container);
  MakeRoom(node, node.size + static_cast<int64_t>(stack.size() - first));
  for (size_t i = first; i < stack.size(); ++i) pickle_.items_[node.begin + node.size++] = stack[i];
}

uint32_t PickleBuilder::Copy(Kind kind, PickleValue from) {
  const uint32_t id = Add(kind);
  if (from.is_leaf()) return id;
  const Pickle::Node source = pickle_.node(from.id());
  for (uint32_t i = 0; i < source.size; ++i) {
    const uint32_t item = pickle_.items_[source.begin + i];
    pickle_.items_.push_back(item);
    CountUse(item);
  }
  pickle_.nodes_.back().size = source.size;
  return id;
}

void PickleBuilder::CountUse(uint32_t id) {
  if (!Pickle::is_node(id)) return;
  uint8_t& uses = NodeOf(id).uses;
  if (uses < UINT8_MAX) ++uses;
}

void PickleBuilder::CountNumber(uint32_t id) {
  if (!Pickle::is_node(id)) return;
  uint8_t& numbers = NodeOf(id).numbers;
  if (numbers < UINT8_MAX) ++numbers;
}

// A value that was pushed once is in one place, on the stack or in one container. So a value that is found as an item,
// and was pushed once, has no other reference than that item, and the parts form a tree. They are all values from
// `first` on if there are as many of them; and as no older container was appended to since `first` was created, their
// items are at the end.
std::optional<PickleBuilder::Tail> PickleBuilder::TailOf(uint32_t call, std::optional<uint32_t> state) const {
  // A fixed array, so that the test costs constant time and a hostile call cannot make it quadratic.
  std::array<uint32_t, 64> parts = {call};
  size_t count = 1;
  if (state && Pickle::is_node(*state)) parts[count++] = *state;
  for (size_t i = 0; i < count; ++i) {
    if (pickle_.node(parts[i]).uses > 1) return std::nullopt;
  }
  Tail tail = {.first = call, .first_item = pickle_.items_.size()};
  for (size_t i = 0; i < count; ++i) {
    const Pickle::Node& node = pickle_.node(parts[i]);
    // A number that is read again would refer to a value that Replace forgets.
    if (node.numbers > 0) return std::nullopt;
    tail.first = std::min(tail.first, parts[i]);
    tail.first_item = std::min<size_t>(tail.first_item, node.begin);
    for (uint32_t j = 0; j < node.size; ++j) {
      const uint32_t item = pickle_.items_[node.begin + j];
      if (!Pickle::is_node(item) || pickle_.node(item).uses > 1) continue;
      if (count == parts.size()) return std::nullopt;
      parts[count++] = item;
    }
  }
  const size_t first = tail.first - Pickle::kFirstNode;
  if (pickle_.nodes_.size() - first != count || OlderWasAppended(first)) return std::nullopt;
  return tail;
}

uint32_t PickleBuilder::Replace(const Tail& tail, uint32_t object) {
  const size_t first = tail.first - Pickle::kFirstNode;
  pickle_.nodes_.resize(first);
  pickle_.items_.resize(tail.first_item);
  // Persistent ids and appends of forgotten values must not refer to ids that new values will get.
  while (!pickle_.persistent_.empty() && pickle_.persistent_.back() >= tail.first) pickle_.persistent_.pop_back();
  while (!appended_.empty() && appended_.back().container >= first) appended_.pop_back();
  return Pickle::kFirstObject + object;
}

int64_t PickleBuilder::CopiedItems(uint32_t arguments) const {
  const PickleValue value = Value(arguments);
  if (value.size() == 0 || value.at(0).is_leaf()) return 0;
  return 2 * int64_t{pickle_.node(value.at(0).id()).size};
}

uint32_t PickleBuilder::AddDict(PickleDict type) {
  const uint32_t id = Add(Kind::kDict);
  pickle_.nodes_.back().dict = static_cast<uint8_t>(type);
  return id;
}

absl::StatusOr<std::optional<uint32_t>> PickleBuilder::Container(uint32_t callee_id, uint32_t arguments_id) {
  const PickleValue callee = Value(callee_id);
  const PickleValue arguments = Value(arguments_id);
  const std::string_view module = callee.global_module();
  const std::string_view name = callee.global_name();
  const bool is_builtin = module == "builtins" || module == "__builtin__";
  if (module == "collections" && name == "OrderedDict") return Dict(PickleDict::kOrdered, callee, arguments);
  if (module == "collections" && name == "Counter") return Dict(PickleDict::kCounter, callee, arguments);
  if (is_builtin && name == "set") return Set(Kind::kSet, callee, arguments);
  if (is_builtin && name == "frozenset") return Set(Kind::kFrozenSet, callee, arguments);
  if (module == "_codecs" && name == "encode") return Encoded(callee, arguments);
  // Protocol 2 writes b"" as bytes(); bytes(n) would be n zeros.
  if (!is_builtin || name != "bytes") return std::nullopt;
  if (arguments.size() != 0) return input_.Broken(absl::StrCat(callee.name(), " with arguments"));
  return Add(Kind::kBytes);
}

// Copies the items instead of sharing them, as Set does: in Python, too, OrderedDict(d) is a different object from d,
// and a later SETITEM must change only one of the two. An OrderedDict may also be made of pairs, as Python 2 writes it;
// a Counter of pairs would count them.
absl::StatusOr<uint32_t> PickleBuilder::Dict(PickleDict type, PickleValue callee, PickleValue arguments) {
  if (arguments.size() == 0) return AddDict(type);
  const PickleValue first = arguments.at(0);
  if (first.is(Kind::kDict)) {
    const uint32_t dict = Copy(Kind::kDict, first);
    NodeOf(dict).dict = static_cast<uint8_t>(type);
    return dict;
  }
  if (!first.is_sequence() || type == PickleDict::kCounter) {
    return input_.Broken(absl::StrCat(callee.name(), " of ", std::string(PickleKindName(first.kind()))));
  }
  const uint32_t dict = AddDict(type);
  for (int64_t i = 0; i < first.size(); ++i) {
    if (!first.at(i).is_sequence() || first.at(i).size() != 2) return input_.Broken("an OrderedDict of no pairs");
    for (int64_t j = 0; j < 2; ++j) {
      pickle_.items_.push_back(first.at(i).at(j).id());
      CountUse(first.at(i).at(j).id());
    }
  }
  pickle_.nodes_.back().size = static_cast<uint32_t>(2 * first.size());
  return dict;
}

absl::StatusOr<uint32_t> PickleBuilder::Set(Kind kind, PickleValue callee, PickleValue arguments) {
  if (arguments.size() == 0) return Add(kind);
  if (arguments.at(0).is_sequence()) return Copy(kind, arguments.at(0));
  return input_.Broken(absl::StrCat(callee.name(), " of ", std::string(PickleKindName(arguments.at(0).kind()))));
}

// Protocol 2 has no opcode for bytes, so Python writes them as _codecs.encode(string, "latin1"). The string is UTF-8,
// and only ASCII has the same bytes in both encodings; any other string stays a kCall with its argument, for readers
// that convert it.
absl::StatusOr<std::optional<uint32_t>> PickleBuilder::Encoded(PickleValue callee, PickleValue arguments) {
  if (arguments.size() == 0 || !arguments.at(0).is(Kind::kString)) {
    return input_.Broken(absl::StrCat(callee.name(), " of no string"));
  }
  const PickleValue first = arguments.at(0);
  const auto [is_ascii, is_new] = is_ascii_.try_emplace(first.id(), false);
  if (is_new) {
    const std::string_view text = first.text();
    is_ascii->second =
        std::all_of(text.begin(), text.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0x80) == 0; });
  }
  if (!is_ascii->second) return std::nullopt;
  return std::make_optional(Items(Kind::kBytes, {first.id()}));
}

}  // namespace fsdp
