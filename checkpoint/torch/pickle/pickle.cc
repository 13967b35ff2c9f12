// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/pickle/pickle.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/torch/pickle/pickle_leaf.h"

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
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kGlobal:
      return "a global";
    case PickleKind::kCall:
      return "an object";
    case PickleKind::kPersistent:
      return "a persistent id";
  }
  CheckFailed("not a PickleKind", __FILE__, __LINE__);
}

PickleKind Pickle::KindOf(uint32_t id) const { return is_leaf(id) ? LeafAt(bytes_, id).kind : node(id).kind; }

bool PickleValue::is_leaf() const { return Pickle::is_leaf(id_); }

PickleKind PickleValue::kind() const { return pickle_->KindOf(id_); }

int64_t PickleValue::place() const { return is_leaf() ? id_ : pickle_->node(id_).place; }

bool PickleValue::boolean() const {
  Check(is(PickleKind::kBool), "not a bool");
  return LeafAt(pickle_->bytes_, id_).integer != 0;
}

int64_t PickleValue::integer() const {
  Check(is(PickleKind::kInt), "not an int");
  return LeafAt(pickle_->bytes_, id_).integer;
}

double PickleValue::real() const {
  Check(is(PickleKind::kFloat), "not a float");
  return LeafAt(pickle_->bytes_, id_).real;
}

// Strings are not copied out of the input. Bytes that are a node are a copy of another text.
std::string_view PickleValue::text() const {
  Check(is(PickleKind::kString) || is(PickleKind::kBytes) || is(PickleKind::kBigInt), "not a text");
  if (is_leaf()) return LeafAt(pickle_->bytes_, id_).text;
  return pickle_->node(id_).size == 0 ? std::string_view() : at(0).text();
}

std::string PickleValue::name() const {
  return absl::StrCat(std::string(global_module()), ".", std::string(global_name()));
}

std::string_view PickleValue::global_module() const {
  Check(is(PickleKind::kGlobal), "not a global");
  return is_leaf() ? LeafAt(pickle_->bytes_, id_).module : at(0).text();
}

std::string_view PickleValue::global_name() const {
  Check(is(PickleKind::kGlobal), "not a global");
  return is_leaf() ? LeafAt(pickle_->bytes_, id_).text : at(1).text();
}

// Items of a dict are keys and values in turn. The empty tuple is a leaf.
int64_t PickleValue::size() const {
  if (is_leaf()) return 0;
  const Pickle::Node& node = pickle_->node(id_);
  return node.kind == PickleKind::kDict ? node.size / 2 : node.size;
}

// Not checked against size(): callers loop up to it, and this is called for every element of a state dict.
PickleValue PickleValue::at(int64_t i) const { return {pickle_, pickle_->items_[pickle_->node(id_).begin + i]}; }

std::pair<PickleValue, PickleValue> PickleValue::member(int64_t i) const {
  Check(is(PickleKind::kDict), "not a dict");
  return {at(2 * i), at(2 * i + 1)};
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

// Compares the two parts without joining them: readers ask this of every call, for many names.
bool PickleValue::is_global(std::string_view wanted) const {
  if (!is(PickleKind::kGlobal)) return false;
  const std::string_view module = global_module();
  const std::string_view object = global_name();
  return wanted.size() == module.size() + 1 + object.size() && wanted.substr(0, module.size()) == module &&
         wanted[module.size()] == '.' && wanted.substr(module.size() + 1) == object;
}

bool PickleValue::is_call(std::string_view wanted) const { return is(PickleKind::kCall) && callee().is_global(wanted); }

}  // namespace fsdp
