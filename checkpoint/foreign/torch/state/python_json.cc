// SPDX-License-Identifier: Apache-2.0
//
// Texts. An extra value of a checkpoint is a text, but torch files have typed values, so TextOfPython and PythonOfText
// must map one to the other without loss: "3" the string and 3 the number are different values. The rule: a value's
// text is its JSON; a string's text is the string itself, unless that could be read as the JSON of a value: then it is
// quoted, once more for each time that it is already quoted. ReadsAsValue decides, for both directions.
//
// Bounds: JsonOfPickle limits values, bytes of text, depth and memory (pickle_budget.h), because values of a pickle can
// be shared (a few bytes describe a list of 10^9 elements), and recursion must not depend on the file. DepthOf measures
// a text before it is parsed, because the parser also recurses.
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int kMaxDepth = 48;
constexpr int64_t kMaxValues = 1'000'000;  // counted with repetition
constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

// The cost of a string in addition to its characters: how long its JSON is, and how many values it has if it is JSON.
struct TextMeasure {
  bool is_utf8 = true;
  int64_t escaped = 2;
  int64_t parts = 1;
};

// True if `text` begins as JSON does, so that TextOfPython has to parse it.
bool MayBeJson(std::string_view text) {
  return !text.empty() && std::string_view("[{\"-0123456789tfn").find(text[0]) != std::string_view::npos;
}

// The length of the UTF-8 sequence at the beginning of `text`; 0 if it is too short, too long, a surrogate or beyond
// U+10FFFF.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Python's decoder refuses both, so such a text could not return to Python.
  const bool is_overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool is_beyond = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  return is_overlong || is_beyond ? 0 : length;
}

TextMeasure Measure(std::string_view text) {
  TextMeasure measure;
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) return {.is_utf8 = false};
    const auto c = static_cast<uint8_t>(text[0]);
    measure.escaped += c < 0x20 ? 6 : c == '"' || c == '\\' ? 2 : static_cast<int64_t>(length);
    if (c == '[' || c == '{' || c == ',' || c == ':') ++measure.parts;
    text.remove_prefix(length);
  }
  return measure;
}

PythonJson Tagged(const char* tag, const char* member, PythonJson value) {
  PythonJson json;
  json[kPythonTag] = tag;
  json[member] = std::move(value);
  return json;
}

// Estimated bytes of a value in an array of JSON, and of its text; the surplus of a string, and of an object with a
// tag.
constexpr int64_t kValueBytes = sizeof(PythonJson);
constexpr int64_t kNumberText = 24;
constexpr int64_t kStringBytes = 80;
constexpr int64_t kTaggedBytes = 448;
constexpr int64_t kMemberBytes = 120;
constexpr int64_t kParsedBytes = 96;  // of each part of a text that is JSON

class Converter {
 public:
  explicit Converter(PickleBudget& budget) : budget_(budget) {}

  absl::StatusOr<PythonJson> Convert(PickleValue value, int depth) {
    if (++values_ > kMaxValues || text_bytes_ > kMaxTextBytes || depth > kMaxDepth) {
      return absl::ResourceExhaustedError(
          absl::StrCat("byte ", value.place(), " of the pickle: a value too large or too deep to be kept"));
    }
    FSDP_RETURN_IF_ERROR(budget_.Take(value, kValueBytes, kValueBytes + kNumberText));
    switch (value.kind()) {
      case Kind::kNone:
        return PythonJson(nullptr);
      case Kind::kBool:
        return PythonJson(value.boolean());
      case Kind::kInt:
        return PythonJson(value.integer());
      case Kind::kBigInt:
        return TextInHex("int", value);
      case Kind::kFloat:
        if (std::isfinite(value.real())) return PythonJson(value.real());
        FSDP_RETURN_IF_ERROR(TakeTagged(value));
        return NotFinite(value.real());
      case Kind::kString:
        return String(value);
      case Kind::kBytes:
        return TextInHex("bytes", value);
      case Kind::kList:
        return Items(value, depth);
      case Kind::kTuple: {
        FSDP_RETURN_IF_ERROR(TakeTagged(value));
        FSDP_ASSIGN_OR_RETURN(PythonJson items, Items(value, depth));
        return Tagged("tuple", "items", std::move(items));
      }
      case Kind::kSet: {
        FSDP_RETURN_IF_ERROR(TakeTagged(value));
        FSDP_ASSIGN_OR_RETURN(PythonJson items, Items(value, depth));
        return Tagged("set", "items", std::move(items));
      }
      case Kind::kDict:
        return Dict(value, depth);
      case Kind::kGlobal:
        FSDP_RETURN_IF_ERROR(TakeTagged(value));
        return Tagged("global", "name", value.name());
      case Kind::kCall:
        return Call(value, depth);
      case Kind::kPersistent:
      case Kind::kObject:
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

  static PythonJson NotFinite(double value) {
    return Tagged("float", "value", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }

  // Takes the memory of an object with a tag, and of its text.
  absl::Status TakeTagged(PickleValue value) { return budget_.Take(value, kTaggedBytes, kTaggedBytes + kStringBytes); }

  // Takes the memory of a string, of its text, and of parsing that text as JSON, before copying the string.
  absl::Status TakeText(PickleValue value) {
    const std::string_view text = value.text();
    const auto nbytes = static_cast<int64_t>(text.size());
    text_bytes_ += nbytes;
    const TextMeasure measure = Measure(text);
    if (!measure.is_utf8) return Refused(value, "a string that is not UTF-8");
    const int64_t parsed = MayBeJson(text) ? 4 * nbytes + kParsedBytes * measure.parts : 0;
    return budget_.Take(value, kStringBytes + nbytes, kStringBytes + nbytes + measure.escaped + parsed);
  }

  absl::StatusOr<PythonJson> TextInHex(const char* tag, PickleValue value) {
    const auto nbytes = static_cast<int64_t>(value.text().size());
    text_bytes_ += nbytes;
    FSDP_RETURN_IF_ERROR(budget_.Take(value, kTaggedBytes + 4 * nbytes, kTaggedBytes + kStringBytes + 4 * nbytes));
    return Tagged(tag, "hex", Hex(value.text()));
  }

  absl::StatusOr<PythonJson> String(PickleValue value) {
    FSDP_RETURN_IF_ERROR(TakeText(value));
    return PythonJson(std::string(value.text()));
  }

  absl::StatusOr<PythonJson> Items(PickleValue value, int depth) {
    PythonJson items = PythonJson::array();
    FSDP_RETURN_IF_ERROR(budget_.Take(value, kStringBytes, kStringBytes));
    // A longer list ends with an error in the loop below, so it needs no more room.
    const int64_t count = std::min(value.size(), kMaxValues);
    FSDP_RETURN_IF_ERROR(budget_.Take(value, count * kValueBytes, 0));  // taken before the allocation
    items.get_ref<PythonJson::array_t&>().reserve(count);
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
    FSDP_RETURN_IF_ERROR(budget_.Take(value, kStringBytes, kStringBytes));
    return is_object ? Object(value, depth) : Pairs(value, depth);
  }

  absl::StatusOr<PythonJson> Object(PickleValue value, int depth) {
    PythonJson object = PythonJson::object();
    absl::flat_hash_set<std::string_view> names;
    for (int64_t i = 0; i < value.size(); ++i) {
      const auto [key, member] = value.member(i);
      FSDP_RETURN_IF_ERROR(budget_.Take(key, kMemberBytes, kMemberBytes));
      FSDP_RETURN_IF_ERROR(TakeText(key));
      FSDP_ASSIGN_OR_RETURN(PythonJson member_json, Convert(member, depth + 1));
      // JSON readers differ in which of two equal names they keep.
      if (!names.insert(key.text()).second) {
        return Refused(value, absl::StrCat("a dict with ", Quote(key.text()), " twice"));
      }
      AppendMember(object, std::string(key.text()), std::move(member_json));
    }
    return object;
  }

  absl::StatusOr<PythonJson> Pairs(PickleValue value, int depth) {
    FSDP_RETURN_IF_ERROR(TakeTagged(value));
    PythonJson pairs = PythonJson::array();
    for (int64_t i = 0; i < value.size(); ++i) {
      const auto [key, member] = value.member(i);
      FSDP_RETURN_IF_ERROR(budget_.Take(key, kMemberBytes, kMemberBytes));
      FSDP_ASSIGN_OR_RETURN(PythonJson key_json, Convert(key, depth + 1));
      FSDP_ASSIGN_OR_RETURN(PythonJson member_json, Convert(member, depth + 1));
      pairs.push_back(PythonJson::array({std::move(key_json), std::move(member_json)}));
    }
    return Tagged("dict", "items", std::move(pairs));
  }

  absl::StatusOr<PythonJson> Call(PickleValue value, int depth) {
    // JSON has no place for the state, and a value without it would be a different one.
    if (value.has_state()) return Refused(value, absl::StrCat(Quote(value.callee().name()), " with a state"));
    FSDP_RETURN_IF_ERROR(TakeTagged(value));
    PythonJson json;
    json[kPythonTag] = "call";
    json["name"] = value.callee().name();
    FSDP_ASSIGN_OR_RETURN(json["items"], Items(value.arguments(), depth));
    return json;
  }

  PickleBudget& budget_;
  int64_t values_ = 0;
  int64_t text_bytes_ = 0;
};

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

// The value of which `text` is exactly the JSON; discarded if there is no such value.
PythonJson ParseExactly(const std::string& text) {
  const PythonJson json = ParsePythonJson(text);
  return !json.is_discarded() && Dump(json) == text ? json : PythonJson(PythonJson::value_t::discarded);
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

}  // namespace

absl::StatusOr<PythonJson> JsonOfPickle(PickleValue value, PickleBudget& budget) {
  return Converter(budget).Convert(value, 0);
}

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
  const auto& text = value.get_ref<const std::string&>();
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
