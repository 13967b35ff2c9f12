// SPDX-License-Identifier: Apache-2.0
//
// Texts. An extra value of a checkpoint is a text, but torch files have typed values, so TextOfPython and PythonOfText
// must map one to the other without loss: "3" the string and 3 the number are different values. The rule: a value's
// text is its JSON; a string's text is the string itself, unless that could be read as the JSON of a value: then it is
// quoted, once more for each time that it is already quoted. ReadsAsValue decides, for both directions, and for the
// wheel too (python/fsdp_checkpoint/_values.py), whose floating-point numbers Python spells.
//
// Recursion must not depend on the file: DepthOf measures a text before it is parsed.
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/numpy_value.h"

namespace fsdp {
namespace {

std::string Dump(const PythonJson& json) { return json.dump(-1, ' ', false, PythonJson::error_handler_t::replace); }

// The depth to which arrays and objects nest, without a parser; never less than the true depth if `text` is JSON.
int DepthOf(const std::string& text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return deepest;
}

// `text` with one spelling of each floating-point number: 1e+15 is also 1000000000000000.0.
std::string Spelled(const std::string& text) {
  std::string spelled;
  for (size_t at = 0; at < text.size();) {
    const bool begins_number = text[at] == '-' || absl::ascii_isdigit(text[at]);
    const size_t length = begins_number ? text.find_first_not_of("+-.0123456789eE", at) - at : 1;
    const std::string part = text.substr(at, length);
    at += part.size();
    double number = 0;
    const bool is_float = part.find_first_of(".eE") != part.npos && absl::SimpleAtod(part, &number);
    spelled += begins_number && is_float ? PythonJson(number).dump() : part;
  }
  return spelled;
}

// The value of which `text` is the JSON, but for the spelling of its floating-point numbers; discarded if there is no
// such value.
PythonJson ParseExactly(const std::string& text) {
  PythonJson json = ParsePythonJson(text);
  const std::string written = json.is_discarded() ? "" : Dump(json);
  const bool is_exact = !json.is_discarded() && (written == text || Spelled(written) == Spelled(text));
  return is_exact ? json : PythonJson(PythonJson::value_t::discarded);
}

// True for the JSON of a value that is not a string, quoted as a string any number of times.
bool ReadsAsValue(const std::string& text) {
  if (!MayBeJson(text)) return false;
  PythonJson json = ParseExactly(text);
  while (json.is_string()) {
    // A loop and not a recursion: a text can be quoted as often as its length allows.
    const std::string inner = std::move(json.get_ref<std::string&>());
    if (!MayBeJson(inner)) return false;
    json = ParseExactly(inner);
  }
  return !json.is_discarded() && NamesOnlyTorchGlobals(json);
}

// The items of a tuple; any other value itself.
const PythonJson& ItemsOf(const PythonJson& json) {
  const bool is_tuple = json.is_object() && json.contains(kPythonTag) && json[kPythonTag] == "tuple";
  return is_tuple && json.contains("items") ? json["items"] : json;
}

}  // namespace

bool MayBeJson(std::string_view text) {
  return !text.empty() && std::string_view("[{\"-0123456789tfn").find(text[0]) != std::string_view::npos;
}

PythonJson ParsePythonJson(const std::string& text) {
  constexpr int kMaxTaggedDepth = 3 * kMaxPythonDepth + 2;  // a tag adds a level to each, and pairs one more
  if (DepthOf(text) > kMaxTaggedDepth) return PythonJson(PythonJson::value_t::discarded);
  return PythonJson::parse(text, nullptr, /*allow_exceptions=*/false);
}

const PythonJson* FindObject(const PythonJson& json) {
  if (!json.is_structured()) return nullptr;
  const auto tag = json.is_object() ? json.find(kPythonTag) : json.end();
  if (tag != json.end() && *tag == kObjectTag) return &json;
  for (const PythonJson& item : json) {
    if (const PythonJson* const found = FindObject(item)) return found;
  }
  return nullptr;
}

void AppendMember(PythonJson& object, std::string name, PythonJson value) {
  auto& members = object.get_ref<PythonJson::object_t&>();
  static_cast<PythonJson::object_t::Container&>(members).emplace_back(std::move(name), std::move(value));
}

PythonJson WithPlainGroups(const PythonJson& json) {
  const PythonJson& groups = ItemsOf(json);
  if (!groups.is_array()) return json;
  PythonJson plain = PythonJson::array();
  for (const PythonJson& group : groups) {
    std::optional<PythonJson> members = MembersOf(group);
    if (members) {
      for (const char* const name : {"betas", "params", "param_names"}) {
        if (const auto at = members->find(name); at != members->end()) *at = PythonJson(ItemsOf(*at));
      }
    }
    plain.push_back(members ? *std::move(members) : group);
  }
  return plain;
}

std::optional<PythonJson> MembersOf(const PythonJson& json) {
  if (!json.is_object()) return std::nullopt;
  const auto tag = json.find(kPythonTag);
  if (tag == json.end()) return json;
  const auto items = json.find("items");
  const bool is_dict = (*tag == "OrderedDict" || *tag == "Counter" || *tag == "dict") && items != json.end();
  if (!is_dict || !items->is_array()) return std::nullopt;
  PythonJson members = PythonJson::object();
  for (const PythonJson& pair : *items) {
    if (!pair.is_array() || pair.size() != 2 || pair[0] == kPythonTag) return std::nullopt;
    if (!pair[0].is_string() && !pair[0].is_number_integer()) return std::nullopt;
    AppendMember(members, pair[0].is_string() ? pair[0].get<std::string>() : pair[0].dump(), pair[1]);
  }
  return members;
}

std::string TextOfPython(const PythonJson& value) {
  if (!value.is_string()) return Dump(value);
  const auto& text = value.get_ref<const std::string&>();
  return ReadsAsValue(text) ? Dump(value) : text;
}

PythonJson PythonOfText(const std::string& text) {
  if (!ReadsAsValue(text)) return text;
  return ParseExactly(text);
}

bool NamesOnlyTorchGlobals(const PythonJson& json) {
  constexpr std::array kNamesNothing = {"tuple", "dict",      "OrderedDict", "Counter",    "float",
                                        "int",   "str",       "bytes",       "bytearray",  "complex",
                                        "set",   "frozenset", "tensor",      kReferenceTag};
  const auto tag = json.is_object() ? json.find(kPythonTag) : json.end();
  if (json.is_object() && tag != json.end() && tag->is_string()) {
    const auto kind = tag->get<std::string>();
    const auto name = json.find("name");
    if (kind == kNumpyTag) return IsNumpyJson(json);
    const bool is_known = (kind == "global" || kind == "call") && name != json.end() && name->is_string() &&
                          IsTorchGlobal(name->get<std::string>());
    if (std::find(kNamesNothing.begin(), kNamesNothing.end(), kind) == kNamesNothing.end() && !is_known) return false;
  }
  return !json.is_structured() || std::all_of(json.begin(), json.end(), NamesOnlyTorchGlobals);
}

}  // namespace fsdp
