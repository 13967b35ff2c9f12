// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/pickle/pickle_builder.h"

#include <algorithm>
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
  return static_cast<uint32_t>(pickle_.nodes_.size() - 1);
}

uint32_t PickleBuilder::Bool(bool value) {
  const uint32_t id = Add(Kind::kBool);
  pickle_.nodes_[id].integer = value ? 1 : 0;
  return id;
}

uint32_t PickleBuilder::Integer(int64_t value) {
  const uint32_t id = Add(Kind::kInt);
  pickle_.nodes_[id].integer = value;
  return id;
}

uint32_t PickleBuilder::Float(double value) {
  const uint32_t id = Add(Kind::kFloat);
  pickle_.nodes_[id].real = value;
  return id;
}

// The offset fits in 32 bits because Pickle::Parse reads at most 4 GiB.
uint32_t PickleBuilder::Text(Kind kind, std::string_view text) {
  const uint32_t id = Add(kind);
  pickle_.nodes_[id].text = {static_cast<uint32_t>(text.data() - input_.bytes().data()),
                             static_cast<uint32_t>(text.size())};
  return id;
}

// Ids of values and indices of items are separate, since most values (numbers, strings) have no items.
uint32_t PickleBuilder::Items(Kind kind, std::vector<uint32_t> items) {
  const uint32_t id = Add(kind);
  item_bytes_ += sizeof(items) + items.size() * sizeof(uint32_t);
  pickle_.nodes_[id].items = static_cast<uint32_t>(pickle_.items_.size());
  pickle_.items_.push_back(std::move(items));
  return id;
}

uint32_t PickleBuilder::Persistent(uint32_t name) {
  const uint32_t id = Items(Kind::kPersistent, {name});
  pickle_.persistent_.push_back(id);
  return id;
}

void PickleBuilder::Append(uint32_t container, uint32_t item) {
  pickle_.items_[pickle_.nodes_[container].items].push_back(item);
  item_bytes_ += sizeof(uint32_t);
}

// Copies the items instead of sharing them: in Python too OrderedDict(d) is another object than d, and a later APPEND
// or SETITEM must change only one of the two.
absl::StatusOr<std::optional<uint32_t>> PickleBuilder::Container(uint32_t callee_id, uint32_t arguments_id) {
  const PickleValue callee = Value(callee_id);
  const PickleValue arguments = Value(arguments_id);
  const bool is_dict = callee.is_global("collections.OrderedDict") || callee.is_global("collections.Counter");
  const bool is_set = callee.is_global("builtins.set") || callee.is_global("__builtin__.set");
  const bool is_bytes = callee.is_global("_codecs.encode") || callee.is_global("builtins.bytearray") ||
                        callee.is_global("__builtin__.bytearray");
  if (!is_dict && !is_set && !is_bytes) return std::nullopt;
  if (arguments.size() == 0)
    return std::make_optional(Empty(is_dict ? Kind::kDict : is_set ? Kind::kSet : Kind::kBytes));
  const PickleValue first = arguments.at(0);
  if (is_bytes) return Bytes(callee, arguments);
  if (is_dict && first.is(Kind::kDict)) return std::make_optional(Items(Kind::kDict, ItemsOf(first.id())));
  if (!first.is_sequence()) {
    return input_.Broken(absl::StrCat(callee.name(), " of ", std::string(PickleKindName(first.kind()))));
  }
  if (is_set) return std::make_optional(Items(Kind::kSet, ItemsOf(first.id())));
  FSDP_ASSIGN_OR_RETURN(const uint32_t dict, DictOfPairs(first));
  return std::make_optional(dict);
}

uint32_t PickleBuilder::Empty(Kind kind) {
  return kind == Kind::kBytes ? Text(kind, input_.bytes().substr(0, 0)) : Items(kind, {});
}

// OrderedDict([(key, value), ...]), as Python 2 writes it.
absl::StatusOr<uint32_t> PickleBuilder::DictOfPairs(PickleValue pairs) {
  std::vector<uint32_t> members;
  for (int64_t i = 0; i < pairs.size(); ++i) {
    if (!pairs.at(i).is_sequence() || pairs.at(i).size() != 2) return input_.Broken("an OrderedDict of no pairs");
    members.push_back(pairs.at(i).at(0).id());
    members.push_back(pairs.at(i).at(1).id());
  }
  return Items(Kind::kDict, std::move(members));
}

// Protocol 2 has no opcode for bytes, so Python writes them as _codecs.encode(string, "latin1"). The string is UTF-8,
// and only ASCII has the same bytes in both encodings; any other string stays a kCall with its argument, for readers
// that want to convert it.
absl::StatusOr<std::optional<uint32_t>> PickleBuilder::Bytes(PickleValue callee, PickleValue arguments) {
  const PickleValue first = arguments.at(0);
  if (first.is(Kind::kBytes)) return std::make_optional(first.id());
  if (!first.is(Kind::kString)) return input_.Broken(absl::StrCat(callee.name(), " of no string"));
  const auto [is_ascii, is_new] = is_ascii_.try_emplace(first.id(), false);
  if (is_new) {
    const std::string_view text = first.text();
    is_ascii->second =
        std::all_of(text.begin(), text.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0x80) == 0; });
  }
  if (!is_ascii->second) return std::nullopt;
  return std::make_optional(Text(Kind::kBytes, first.text()));
}

}  // namespace fsdp
