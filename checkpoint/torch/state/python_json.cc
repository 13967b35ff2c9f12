// SPDX-License-Identifier: Apache-2.0
//
// Texts. An extra value of a checkpoint is a text, but torch files have typed values, so TextOfPython and PythonOfText
// must map one to the other without loss: "3" the string and 3 the number are different values. The rule: a value's
// text is its JSON; a string's text is the string itself, unless that could be read as the JSON of a value: then it is
// quoted, once more for each time that it is quoted already. ReadsAsValue decides, and both directions ask it.
//
// Bounds: JsonOfPickle limits values, bytes of text and depth, because values of a pickle can be shared (a few bytes
// describe a list of 10^9 elements), and recursion must not depend on the file. Text is measured by DepthOf before it
// is parsed, since the parser recurses too.
#include "fsdp/checkpoint/torch/state/python_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/torch/pickle/torch_globals.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int kMaxDepth = 48;
constexpr int64_t kMaxValues = 1'000'000;  // counted with repetition
constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

PythonJson Tagged(const char* tag, const char* member, PythonJson value) {
  PythonJson json;
  json[kPythonTag] = tag;
  json[member] = std::move(value);
  return json;
}

class Converter {
 public:
  absl::StatusOr<PythonJson> Convert(PickleValue value, int depth) {
    if (++values_ > kMaxValues || text_bytes_ > kMaxTextBytes || depth > kMaxDepth) {
      return absl::ResourceExhaustedError(
          absl::StrCat("byte ", value.place(), " of the pickle: a value too large or too deep to be kept"));
    }
    switch (value.kind()) {
      case Kind::kNone:
        return PythonJson(nullptr);
      case Kind::kBool:
        return PythonJson(value.boolean());
      case Kind::kInt:
        return PythonJson(value.integer());
      case Kind::kBigInt:
        return Tagged("int", "hex", Hex(value.text()));
      case Kind::kFloat:
        return Float(value.real());
      case Kind::kString:
        return String(value);
      case Kind::kBytes:
        text_bytes_ += static_cast<int64_t>(value.text().size());
        return Tagged("bytes", "hex", Hex(value.text()));
      case Kind::kList:
        return Items(value, depth);
      case Kind::kTuple: {
        FSDP_ASSIGN_OR_RETURN(PythonJson items, Items(value, depth));
        return Tagged("tuple", "items", std::move(items));
      }
      case Kind::kSet: {
        FSDP_ASSIGN_OR_RETURN(PythonJson items, Items(value, depth));
        return Tagged("set", "items", std::move(items));
      }
      case Kind::kDict:
        return Dict(value, depth);
      case Kind::kGlobal:
        return Tagged("global", "name", value.name());
      case Kind::kCall:
        return Call(value, depth);
      case Kind::kPersistent:
        break;
    }
    return Refused(value, "a storage outside of a tensor");
  }

 private:
  static absl::Status Refused(PickleValue value, const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte ", value.place(), " of the pickle: ", what, " cannot be kept"));
  }

  static std::string Hex(std::string_view bytes) { return absl::BytesToHexString({bytes.data(), bytes.size()}); }

  static PythonJson Float(double value) {
    if (std::isfinite(value)) return value;
    return Tagged("float", "value", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }

  absl::StatusOr<PythonJson> String(PickleValue value) {
    text_bytes_ += static_cast<int64_t>(value.text().size());
    PythonJson json = std::string(value.text());
    // The library checks UTF-8 only when it serialises: bytes that it leaves out were none.
    const std::string text = json.dump(-1, ' ', false, PythonJson::error_handler_t::ignore);
    if (PythonJson::parse(text, nullptr, false) != json) return Refused(value, "a string that is not UTF-8");
    return json;
  }

  absl::StatusOr<PythonJson> Items(PickleValue value, int depth) {
    PythonJson items = PythonJson::array();
    for (int64_t i = 0; i < value.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(PythonJson item, Convert(value.at(i), depth + 1));
      items.push_back(std::move(item));
    }
    return items;
  }

  // A JSON object, if all keys are strings and none is the tag; otherwise pairs.
  absl::StatusOr<PythonJson> Dict(PickleValue value, int depth) {
    bool is_object = true;
    for (int64_t i = 0; i < value.size(); ++i) {
      const PickleValue key = value.member(i).first;
      is_object = is_object && key.is(Kind::kString) && key.text() != kPythonTag;
    }
    PythonJson object = PythonJson::object();
    PythonJson pairs = PythonJson::array();
    absl::flat_hash_set<std::string_view> names;
    for (int64_t i = 0; i < value.size(); ++i) {
      const auto [key, member] = value.member(i);
      FSDP_ASSIGN_OR_RETURN(PythonJson key_json, Convert(key, depth + 1));
      FSDP_ASSIGN_OR_RETURN(PythonJson member_json, Convert(member, depth + 1));
      if (is_object) {
        if (!names.insert(key.text()).second)
          return Refused(value, absl::StrCat("a dict with ", Quote(key.text()), " twice"));
        AppendMember(object, std::string(key.text()), std::move(member_json));
      } else {
        pairs.push_back(PythonJson::array({std::move(key_json), std::move(member_json)}));
      }
    }
    return is_object ? object : Tagged("dict", "items", std::move(pairs));
  }

  absl::StatusOr<PythonJson> Call(PickleValue value, int depth) {
    if (value.has_state()) return Refused(value, absl::StrCat(Quote(value.callee().name()), " with a state"));
    PythonJson json;
    json[kPythonTag] = "call";
    json["name"] = value.callee().name();
    FSDP_ASSIGN_OR_RETURN(json["items"], Items(value.arguments(), depth));
    return json;
  }

  int64_t values_ = 0;
  int64_t text_bytes_ = 0;
};

std::string Dump(const PythonJson& json) { return json.dump(-1, ' ', false, PythonJson::error_handler_t::replace); }

// The depth to which arrays and objects nest, without a parser; at least the true one if `text` is JSON.
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

// The value that `text` is exactly the JSON of; discarded where it is of none.
PythonJson ParseExactly(const std::string& text) {
  const PythonJson json = ParsePythonJson(text);
  return !json.is_discarded() && Dump(json) == text ? json : PythonJson(PythonJson::value_t::discarded);
}

// True for the JSON of a value that is no string, quoted as a string any number of times.
bool ReadsAsValue(std::string text) {
  while (true) {
    const PythonJson json = ParseExactly(text);
    if (!json.is_string()) return !json.is_discarded() && NamesOnlyTorchGlobals(json);
    text = json.get<std::string>();
  }
}

}  // namespace

absl::StatusOr<PythonJson> JsonOfPickle(PickleValue value) { return Converter().Convert(value, 0); }

PythonJson ParsePythonJson(const std::string& text) {
  constexpr int kMaxTaggedDepth = 2 * kMaxDepth + 2;  // a tag adds a level to each
  if (DepthOf(text) > kMaxTaggedDepth) return PythonJson(PythonJson::value_t::discarded);
  return PythonJson::parse(text, nullptr, /*allow_exceptions=*/false);
}

void AppendMember(PythonJson& object, std::string name, PythonJson value) {
  auto& members = object.get_ref<PythonJson::object_t&>();
  static_cast<PythonJson::object_t::Container&>(members).emplace_back(std::move(name), std::move(value));
}

PythonJson WithPlainTuples(const PythonJson& json) {
  if (json.is_object() && json.contains(kPythonTag) && json[kPythonTag] == "tuple" && json.contains("items")) {
    return WithPlainTuples(json["items"]);
  }
  if (!json.is_structured()) return json;
  PythonJson plain = json.is_array() ? PythonJson::array() : PythonJson::object();
  for (const auto& [key, value] : json.items()) {
    if (json.is_array()) {
      plain.push_back(WithPlainTuples(value));
    } else {
      AppendMember(plain, key, WithPlainTuples(value));
    }
  }
  return plain;
}

std::string TextOfPython(const PythonJson& value) {
  if (!value.is_string()) return Dump(value);
  const auto text = value.get<std::string>();
  return ReadsAsValue(text) ? Dump(value) : text;
}

PythonJson PythonOfText(const std::string& text) {
  if (!ReadsAsValue(text)) return text;
  return ParseExactly(text);
}

bool NamesOnlyTorchGlobals(const PythonJson& json) {
  // An unknown tag is treated as a call: PickleWriter would write it as one.
  const auto tag = json.is_object() ? json.find(kPythonTag) : json.end();
  if (json.is_object() && tag != json.end() && tag->is_string()) {
    constexpr std::array kHarmless = {"tuple", "dict", "float", "int", "bytes", "set", "tensor"};
    const auto kind = tag->get<std::string>();
    const auto name = json.find("name");
    const bool is_known = name != json.end() && name->is_string() && IsTorchGlobal(name->get<std::string>());
    if (std::find(kHarmless.begin(), kHarmless.end(), kind) == kHarmless.end() && !is_known) return false;
  }
  return !json.is_structured() || std::all_of(json.begin(), json.end(), NamesOnlyTorchGlobals);
}

}  // namespace fsdp
