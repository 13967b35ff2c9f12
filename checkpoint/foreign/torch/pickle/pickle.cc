// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_leaf.h"

namespace fsdp {

std::string_view PickleKindName(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInt:
      return "an int";
    case PickleKind::kBigInt:
      return "an int of more than 64 bits";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kString:
      return "a string";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kByteArray:
      return "a bytearray";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kFrozenSet:
      return "a frozenset";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kGlobal:
      return "a global";
    case PickleKind::kCall:
      return "an object";
    case PickleKind::kPersistent:
      return "a persistent id";
    case PickleKind::kObject:
      return "an object";
  }
  CheckFailed("not a PickleKind", __FILE__, __LINE__);
}

// By default an object with a state stays a call.
std::optional<uint32_t> PickleObjects::TakeBuilt(PickleValue, PickleValue) { return std::nullopt; }

// The ranges of ids decide first: leaves and objects have no node that could be read.
PickleKind Pickle::KindOf(uint32_t id) const {
  if (is_object(id)) return PickleKind::kObject;
  return is_leaf(id) ? LeafAt(bytes_, id).kind : node(id).kind;
}

// An object counts as a leaf here: it has no parts that a walk could visit.
bool PickleValue::is_leaf() const { return !Pickle::is_node(id_); }

PickleKind PickleValue::kind() const { return pickle_->KindOf(id_); }

int64_t PickleValue::place() const {
  if (Pickle::is_object(id_)) return pickle_->objects_->place(object());
  return Pickle::is_leaf(id_) ? id_ : pickle_->node(id_).place;
}

// Decoding a leaf is the cost of reading it, so each accessor decodes once, for the kind and the contents.
bool PickleValue::boolean() const {
  Check(Pickle::is_leaf(id_), "not a bool");
  const PickleLeaf leaf = LeafAt(pickle_->bytes_, id_);
  Check(leaf.kind == PickleKind::kBool, "not a bool");
  return leaf.integer != 0;
}

int64_t PickleValue::integer() const {
  Check(Pickle::is_leaf(id_), "not an int");
  const PickleLeaf leaf = LeafAt(pickle_->bytes_, id_);
  Check(leaf.kind == PickleKind::kInt, "not an int");
  return leaf.integer;
}

double PickleValue::real() const {
  Check(Pickle::is_leaf(id_), "not a float");
  const PickleLeaf leaf = LeafAt(pickle_->bytes_, id_);
  Check(leaf.kind == PickleKind::kFloat, "not a float");
  return leaf.real;
}

// Strings are not copied out of the input. Bytes stored as a node are a copy of another text.
std::string_view PickleValue::text() const {
  if (Pickle::is_leaf(id_)) {
    const PickleLeaf leaf = LeafAt(pickle_->bytes_, id_);
    Check(leaf.kind == PickleKind::kString || leaf.kind == PickleKind::kBytes || leaf.kind == PickleKind::kByteArray ||
              leaf.kind == PickleKind::kBigInt,
          "not a text");
    return leaf.text;
  }
  // A node with text is always kBytes: strings and big ints are leaves.
  Check(is(PickleKind::kBytes), "not a text");
  return pickle_->node(id_).size == 0 ? std::string_view() : at(0).text();
}

// A string is always a leaf, so a node needs no look at its kind.
bool PickleValue::is_string(std::string_view wanted) const {
  if (!Pickle::is_leaf(id_)) return false;
  const PickleLeaf leaf = LeafAt(pickle_->bytes_, id_);
  return leaf.kind == PickleKind::kString && leaf.text == wanted;
}

std::string PickleValue::name() const {
  return absl::StrCat(std::string(global_module()), ".", std::string(global_name()));
}

// GLOBAL is a leaf with two lines of text; STACK_GLOBAL is a node with two strings.
std::optional<std::pair<std::string_view, std::string_view>> PickleValue::FindGlobal() const {
  if (Pickle::is_leaf(id_)) {
    const PickleLeaf leaf = LeafAt(pickle_->bytes_, id_);
    if (leaf.kind != PickleKind::kGlobal) return std::nullopt;
    return std::make_pair(leaf.module, leaf.text);
  }
  if (!is(PickleKind::kGlobal)) return std::nullopt;
  return std::make_pair(at(0).text(), at(1).text());
}

std::string_view PickleValue::global_module() const {
  const auto global = FindGlobal();
  Check(global.has_value(), "not a global");
  return global->first;
}

std::string_view PickleValue::global_name() const {
  const auto global = FindGlobal();
  Check(global.has_value(), "not a global");
  return global->second;
}

// Items of a dict alternate between keys and values. The empty tuple is a leaf, and an object shows no items.
int64_t PickleValue::size() const {
  if (is_leaf()) return 0;
  const Pickle::Node& node = pickle_->node(id_);
  return node.kind == PickleKind::kDict ? node.size / 2 : node.size;
}

// Not checked against size(): callers loop up to it, and every element of a state dict is read through this.
PickleValue PickleValue::at(int64_t i) const { return {pickle_, pickle_->items_[pickle_->node(id_).begin + i]}; }

std::pair<PickleValue, PickleValue> PickleValue::member(int64_t i) const {
  Check(is(PickleKind::kDict), "not a dict");
  return {at(2 * i), at(2 * i + 1)};
}

PickleDict PickleValue::dict_type() const {
  Check(is(PickleKind::kDict), "not a dict");
  return static_cast<PickleDict>(pickle_->node(id_).dict);
}

PickleValue PickleValue::callee() const {
  Check(is(PickleKind::kCall), "not a call");
  return at(0);
}

PickleValue PickleValue::arguments() const {
  Check(is(PickleKind::kCall), "not a call");
  return at(1);
}

// BUILD appends the state to the items of the call: callee, arguments, state.
bool PickleValue::has_state() const { return is(PickleKind::kCall) && pickle_->node(id_).size > 2; }

PickleValue PickleValue::state() const {
  Check(has_state(), "no state");
  return at(2);
}

uint32_t PickleValue::object() const {
  Check(is(PickleKind::kObject), "not an object that was taken");
  return id_ - Pickle::kFirstObject;
}

// Compares the two parts without joining them: readers test every call for many names.
bool PickleValue::is_global(std::string_view wanted) const {
  const auto global = FindGlobal();
  if (!global) return false;
  const auto& [module, object] = *global;
  return wanted.size() == module.size() + 1 + object.size() && wanted.substr(0, module.size()) == module &&
         wanted[module.size()] == '.' && wanted.substr(module.size() + 1) == object;
}

bool PickleValue::is_call(std::string_view wanted) const { return is(PickleKind::kCall) && callee().is_global(wanted); }

}  // namespace fsdp
