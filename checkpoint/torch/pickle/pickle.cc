// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/pickle/pickle.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"

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

PickleKind PickleValue::kind() const { return pickle_->node(id_).kind; }

int64_t PickleValue::place() const { return pickle_->node(id_).place; }

bool PickleValue::boolean() const {
  Check(is(PickleKind::kBool), "not a bool");
  return pickle_->node(id_).integer != 0;
}

int64_t PickleValue::integer() const {
  Check(is(PickleKind::kInt), "not an int");
  return pickle_->node(id_).integer;
}

double PickleValue::real() const {
  Check(is(PickleKind::kFloat), "not a float");
  return pickle_->node(id_).real;
}

// Strings are not copied out of the input, so a Pickle of long strings takes little more memory than its bytes.
std::string_view PickleValue::text() const {
  Check(is(PickleKind::kString) || is(PickleKind::kBytes) || is(PickleKind::kBigInt), "not a text");
  const Pickle::Node& node = pickle_->node(id_);
  return pickle_->bytes_.substr(node.text.offset, node.text.length);
}

std::string PickleValue::name() const {
  Check(is(PickleKind::kGlobal), "not a global");
  return absl::StrCat(std::string(at(0).text()), ".", std::string(at(1).text()));
}

// Items of a dict are keys and values in turn.
int64_t PickleValue::size() const {
  const auto count = static_cast<int64_t>(pickle_->items(id_).size());
  return is(PickleKind::kDict) ? count / 2 : count;
}

// Not checked against size(): callers loop up to it, and this is called for every element of a state dict.
PickleValue PickleValue::at(int64_t i) const { return {pickle_, pickle_->items(id_)[i]}; }

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
bool PickleValue::has_state() const { return is(PickleKind::kCall) && pickle_->items(id_).size() > 2; }

PickleValue PickleValue::state() const {
  Check(has_state(), "no state");
  return at(2);
}

// Compares the two parts without joining them: readers ask this of every call, for many names.
bool PickleValue::is_global(std::string_view wanted) const {
  if (!is(PickleKind::kGlobal)) return false;
  const std::string_view module = at(0).text();
  const std::string_view object = at(1).text();
  return wanted.size() == module.size() + 1 + object.size() && wanted.substr(0, module.size()) == module &&
         wanted[module.size()] == '.' && wanted.substr(module.size() + 1) == object;
}

bool PickleValue::is_call(std::string_view wanted) const { return is(PickleKind::kCall) && callee().is_global(wanted); }

std::vector<PickleValue> Pickle::persistent() const {
  std::vector<PickleValue> values;
  for (const uint32_t id : persistent_) values.push_back({this, id});
  return values;
}

}  // namespace fsdp
