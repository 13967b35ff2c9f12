// SPDX-License-Identifier: Apache-2.0
//
// JsonOfPickle. Limits values, bytes of text, depth and memory (pickle_budget.h), because values of a pickle can be
// shared (a few bytes describe a list of 10^9 elements), and recursion must not depend on the file.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_bytes.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/numpy_value.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int64_t kMaxValues = 1'000'000;  // counted with repetition
constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

// The cost of a string in addition to its characters: how long its JSON is, and how many values it has if it is JSON.
struct TextMeasure {
  bool is_utf8 = true;  // perhaps with surrogates
  bool has_surrogates = false;
  int64_t escaped = 2;
  int64_t parts = 1;
};

// The length of the UTF-8 sequence at the beginning of `text`, which may be a surrogate; 0 if it is too short, too long
// or beyond U+10FFFF.
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
  const bool is_beyond = first == 0xf4 && byte(1) >= 0x90;
  return is_overlong || is_beyond ? 0 : length;
}

TextMeasure Measure(std::string_view text) {
  TextMeasure measure;
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) return {.is_utf8 = false};
    const auto c = static_cast<uint8_t>(text[0]);
    // U+D800 to U+DFFF, which Python writes in this form.
    measure.has_surrogates = measure.has_surrogates || (c == 0xed && static_cast<uint8_t>(text[1]) >= 0xa0);
    measure.escaped += c < 0x20 ? 6 : c == '"' || c == '\\' ? 2 : static_cast<int64_t>(length);
    if (c == '[' || c == '{' || c == ',' || c == ':') ++measure.parts;
    text.remove_prefix(length);
  }
  return measure;
}

bool IsCallOfBuiltin(PickleValue value, const char* name) {
  return value.is_call(absl::StrCat("builtins.", name)) || value.is_call(absl::StrCat("__builtin__.", name));
}

PythonJson Tagged(const char* tag, const char* member, PythonJson value) {
  PythonJson json;
  json[kPythonTag] = tag;
  json[member] = std::move(value);
  return json;
}

constexpr char kTensorInNoPlace[] =
    "a storage, or a tensor in a set, in a key or in an argument: save tensors in dicts and lists";

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
    if (++values_ > kMaxValues || text_bytes_ > kMaxTextBytes || depth > kMaxPythonDepth) {
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
      case Kind::kByteArray:
        return TextInHex("bytearray", value);
      case Kind::kList:
        return Items(value, depth);
      case Kind::kTuple:
        return TaggedItems("tuple", value, depth);
      case Kind::kSet:
        return TaggedItems("set", value, depth);
      case Kind::kFrozenSet:
        return TaggedItems("frozenset", value, depth);
      case Kind::kDict:
        return Dict(value, depth);
      case Kind::kGlobal:
        return Named("global", value, value);
      case Kind::kCall:
        return Call(value, depth);
      case Kind::kPersistent:
      case Kind::kObject:
        break;
    }
    return NotKept(value, kTensorInNoPlace, /*is_tensor=*/true);
  }

 private:
  // A value that has no form here: an object, which is named and left out like one of another class.
  absl::StatusOr<PythonJson> NotKept(PickleValue value, const std::string& what, bool is_tensor = false) {
    return ObjectOfPickle(value, absl::StrCat("byte ", value.place(), " of the pickle: ", what), is_tensor, budget_);
  }

  static std::string Hex(std::string_view bytes) { return absl::BytesToHexString({bytes.data(), bytes.size()}); }

  static PythonJson NotFinite(double value) {
    return Tagged("float", "value", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }

  // Takes the memory of an object with a tag, and of its text.
  absl::Status TakeTagged(PickleValue value) { return budget_.Take(value, kTaggedBytes, kTaggedBytes + kStringBytes); }

  // A value that is the name of a global. `tag`: of a name on the list for torch files.
  absl::StatusOr<PythonJson> Named(const char* tag, PickleValue value, PickleValue global) {
    const std::string name = global.name();
    const auto nbytes = static_cast<int64_t>(name.size());
    FSDP_RETURN_IF_ERROR(TakeTagged(value));
    FSDP_RETURN_IF_ERROR(budget_.Take(value, nbytes, 6 * nbytes));
    PythonJson json = Tagged(IsTorchGlobal(name) ? tag : kObjectTag, "name", name);
    if (json[kPythonTag] != kObjectTag) return json;
    json["place"] = value.place();
    if (IsTensorGlobal(name)) json["tensor"] = true;
    return json;
  }

  absl::StatusOr<PythonJson> TaggedItems(const char* tag, PickleValue value, int depth) {
    FSDP_RETURN_IF_ERROR(TakeTagged(value));
    FSDP_ASSIGN_OR_RETURN(PythonJson items, Items(value, depth));
    return Tagged(tag, "items", std::move(items));
  }

  static bool IsPlainText(PickleValue value) {
    const TextMeasure measure = Measure(value.text());
    return measure.is_utf8 && !measure.has_surrogates;
  }

  // Takes the memory of a plain string, of its text, and of parsing that text as JSON, before copying the string.
  absl::Status TakeText(PickleValue value) {
    const std::string_view text = value.text();
    const auto nbytes = static_cast<int64_t>(text.size());
    text_bytes_ += nbytes;
    const TextMeasure measure = Measure(text);
    const int64_t parsed = MayBeJson(text) ? 4 * nbytes + kParsedBytes * measure.parts : 0;
    return budget_.Take(value, kStringBytes + nbytes, kStringBytes + nbytes + measure.escaped + parsed);
  }

  // The text of `value`, or other bytes, which are no longer than that.
  absl::StatusOr<PythonJson> TextInHex(const char* tag, PickleValue value,
                                       const std::optional<std::string>& bytes = std::nullopt) {
    const auto nbytes = static_cast<int64_t>(bytes ? bytes->size() : value.text().size());
    text_bytes_ += nbytes;
    FSDP_RETURN_IF_ERROR(budget_.Take(value, kTaggedBytes + 5 * nbytes, kTaggedBytes + kStringBytes + 4 * nbytes));
    return Tagged(tag, "hex", Hex(bytes ? std::string_view(*bytes) : value.text()));
  }

  absl::StatusOr<PythonJson> String(PickleValue value) {
    const TextMeasure measure = Measure(value.text());
    if (measure.has_surrogates) return TextInHex("str", value);
    if (!measure.is_utf8) return NotKept(value, "a string that is not UTF-8: save it as bytes");
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

  // A JSON object, if it is a plain dict, all keys are strings and none is the tag; otherwise pairs.
  absl::StatusOr<PythonJson> Dict(PickleValue value, int depth) {
    if (value.dict_type() == PickleDict::kOrdered) return Pairs("OrderedDict", value, depth);
    if (value.dict_type() == PickleDict::kCounter) return Pairs("Counter", value, depth);
    bool is_object = true;
    for (int64_t i = 0; i < value.size(); ++i) {
      const PickleValue key = value.member(i).first;
      is_object = is_object && key.is(Kind::kString) && key.text() != kPythonTag && IsPlainText(key);
    }
    FSDP_RETURN_IF_ERROR(budget_.Take(value, kStringBytes, kStringBytes));
    return is_object ? Object(value, depth) : Pairs("dict", value, depth);
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
        return absl::InvalidArgumentError(absl::StrCat("byte ", value.place(), " of the pickle: a dict with ",
                                                       Quote(key.text()), " twice cannot be kept"));
      }
      AppendMember(object, std::string(key.text()), std::move(member_json));
    }
    return object;
  }

  absl::StatusOr<PythonJson> Pairs(const char* tag, PickleValue value, int depth) {
    FSDP_RETURN_IF_ERROR(TakeTagged(value));
    PythonJson pairs = PythonJson::array();
    for (int64_t i = 0; i < value.size(); ++i) {
      const auto [key, member] = value.member(i);
      FSDP_RETURN_IF_ERROR(budget_.Take(key, kMemberBytes, kMemberBytes));
      FSDP_ASSIGN_OR_RETURN(PythonJson key_json, Convert(key, depth + 1));
      FSDP_ASSIGN_OR_RETURN(PythonJson member_json, Convert(member, depth + 1));
      pairs.push_back(PythonJson::array({std::move(key_json), std::move(member_json)}));
    }
    return Tagged(tag, "items", std::move(pairs));
  }

  absl::StatusOr<PythonJson> Call(PickleValue value, int depth) {
    if (IsNumpyGlobal(value.callee().name())) return Numpy(value);
    if (IsPlainObject(value.callee().name())) return PlainObject(value, depth);
    if (!IsTorchGlobal(value.callee().name())) return Named(kObjectTag, value, ClassOf(value));
    // JSON has no place for the state, and a value without it would be a different one.
    if (value.has_state()) {
      return NotKept(value, absl::StrCat(Quote(value.callee().name()), " with a state cannot be kept"));
    }
    if (value.is_call("_codecs.encode")) return Bytes("bytes", value, value);
    if (IsCallOfBuiltin(value, "bytearray")) return ByteArray(value);
    if (IsCallOfBuiltin(value, "complex")) return TaggedItems("complex", value.arguments(), depth);
    FSDP_RETURN_IF_ERROR(TakeTagged(value));
    PythonJson json;
    json[kPythonTag] = "call";
    json["name"] = value.callee().name();
    FSDP_ASSIGN_OR_RETURN(json["items"], Items(value.arguments(), depth));
    return json;
  }

  // The attributes of an object, or the value of an enum.
  absl::StatusOr<PythonJson> PlainObject(PickleValue value, int depth) {
    if (value.has_state()) return Convert(value.state(), depth + 1);
    if (value.arguments().size() == 1) return Convert(value.arguments().at(0), depth + 1);
    return Named(kObjectTag, value, value.callee());
  }

  // copyreg._reconstructor(class, base, state) creates an object of the class, as protocols 0 and 1 write it.
  static PickleValue ClassOf(PickleValue call) {
    const bool is_reconstructor = call.callee().global_name() == "_reconstructor" && call.arguments().size() > 0 &&
                                  call.arguments().at(0).is(Kind::kGlobal);
    return is_reconstructor ? call.arguments().at(0) : call.callee();
  }

  // The bytes of `from`, which BytesOfPickle reads, as the value `value`.
  absl::StatusOr<PythonJson> Bytes(const char* tag, PickleValue value, PickleValue from) {
    FSDP_RETURN_IF_ERROR(budget_.Take(value, MaxBytesOfPickle(from), 0));  // before they are copied
    const std::optional<std::string> bytes = BytesOfPickle(from);
    return bytes ? TextInHex(tag, value, bytes)
                 : NotKept(value, "bytes in an encoding other than Latin-1 cannot be kept");
  }

  // bytearray(), bytearray(bytes) or, before Python 3.8, bytearray(text, "latin-1").
  absl::StatusOr<PythonJson> ByteArray(PickleValue value) {
    const PickleValue arguments = value.arguments();
    if (arguments.size() == 0) return TextInHex("bytearray", value, std::string());
    const PickleValue first = arguments.at(0);
    const bool is_bytes = first.is(Kind::kBytes) || first.is_call("_codecs.encode");
    if (arguments.size() == 1 && is_bytes) return Bytes("bytearray", value, first);
    if (arguments.size() == 2 && first.is(Kind::kString) && arguments.at(1).is_string("latin-1")) {
      FSDP_RETURN_IF_ERROR(budget_.Take(value, static_cast<int64_t>(first.text().size()), 0));
      const std::optional<std::string> bytes = Latin1(first.text());
      if (bytes) return TextInHex("bytearray", value, bytes);
    }
    return NotKept(value,
                   absl::StrCat("a bytearray of ", std::string(PickleKindName(first.kind())), " cannot be kept"));
  }

  // A scalar or an array of numpy; an object, if its bytes have no simple meaning.
  absl::StatusOr<PythonJson> Numpy(PickleValue value) {
    const int64_t nbytes = BytesOfNumpy(value);
    FSDP_RETURN_IF_ERROR(budget_.Take(value, 2 * kTaggedBytes + 5 * nbytes, 3 * kTaggedBytes + 4 * nbytes));
    std::optional<PythonJson> json = JsonOfNumpy(value);
    if (!json) return Named(kObjectTag, value, value.callee());
    return *std::move(json);
  }

  PickleBudget& budget_;
  int64_t values_ = 0;
  int64_t text_bytes_ = 0;
};

}  // namespace

absl::StatusOr<PythonJson> ObjectOfPickle(PickleValue value, const std::string& what, bool is_tensor,
                                          PickleBudget& budget) {
  const auto nbytes = static_cast<int64_t>(what.size());
  FSDP_RETURN_IF_ERROR(budget.Take(value, kTaggedBytes + nbytes, kTaggedBytes + kStringBytes + 6 * nbytes));
  PythonJson json = Tagged(kObjectTag, "what", what);
  if (is_tensor) json["tensor"] = true;
  return json;
}

absl::StatusOr<PythonJson> JsonOfPickle(PickleValue value, PickleBudget& budget) {
  return Converter(budget).Convert(value, 0);
}

}  // namespace fsdp
