// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"

#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/foreign/torch/state/numpy_value.h"

namespace fsdp {

// Protocol 2, torch.save's default.
PickleWriter::PickleWriter() {
  Emit(PickleOpcode::kProto);
  bytes_.push_back(2);
}

void PickleWriter::EmitInteger(uint64_t value, int nbytes) {
  for (int i = 0; i < nbytes; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
}

// The opcodes that Python's pickler chooses, except that an integer beyond 32 bits always takes 8 bytes.
void PickleWriter::Integer(int64_t value) {
  if (value >= 0 && value <= 0xFF) {
    Emit(PickleOpcode::kBinInt1);
    EmitInteger(value, 1);
  } else if (value >= 0 && value <= 0xFFFF) {
    Emit(PickleOpcode::kBinInt2);
    EmitInteger(value, 2);
  } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    Emit(PickleOpcode::kBinInt);
    EmitInteger(static_cast<uint64_t>(value), 4);
  } else {
    Emit(PickleOpcode::kLong1);
    bytes_.push_back(8);
    EmitInteger(static_cast<uint64_t>(value), 8);
  }
}

// BINFLOAT is big-endian, unlike everything else in a pickle.
void PickleWriter::Float(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  Emit(PickleOpcode::kBinFloat);
  for (int i = 7; i >= 0; --i) bytes_.push_back(static_cast<char>(bits >> (8 * i)));
}

// `text` should be UTF-8: Python refuses a pickle with other bytes.
void PickleWriter::String(std::string_view text) {
  Emit(PickleOpcode::kBinUnicode);
  EmitInteger(text.size(), 4);
  bytes_.append(text);
}

void PickleWriter::Integers(absl::Span<const int64_t> values) {
  if (values.empty()) return EmptyTuple();
  Mark();
  for (const int64_t value : values) Integer(value);
  Tuple();
}

// A DCP directory names a few globals for every chunk: the memo keeps its .metadata small.
void PickleWriter::Global(std::string_view name) {
  const auto at = memo_.find(name);
  if (at != memo_.end()) {
    Emit(PickleOpcode::kLongBinGet);
    EmitInteger(at->second, 4);
    return;
  }
  const size_t dot = name.rfind('.');
  Emit(PickleOpcode::kGlobal);
  bytes_.append(name.substr(0, dot)).append("\n").append(name.substr(dot + 1)).append("\n");
  const auto index = static_cast<uint32_t>(memo_.size());
  Emit(PickleOpcode::kLongBinPut);
  EmitInteger(index, 4);
  memo_.emplace(name, index);
}

void PickleWriter::Items(const PythonJson& items) {
  for (const PythonJson& item : items) Python(item);
}

// Recurses as deeply as `json` is nested, which ParsePythonJson and JsonOfPickle bound.
// Values that JSON does not have are objects with a tag (python_json.h).
void PickleWriter::Python(const PythonJson& json) {
  if (json.is_null()) return None();
  if (json.is_boolean()) return Bool(json.get<bool>());
  if (json.is_number_float()) return Float(json.get<double>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
    std::string bytes(sizeof(uint64_t) + 1, '\0');  // a byte for the sign
    const uint64_t value = json.get<uint64_t>();
    std::memcpy(bytes.data(), &value, sizeof(value));
    return BigInteger(bytes);
  }
  if (json.is_number_integer()) return Integer(json.get<int64_t>());
  if (json.is_string()) return String(json.get_ref<const std::string&>());
  if (json.is_array()) {
    EmptyList();
    Mark();
    Items(json);
    return Appends();
  }
  const auto tag = json.find(kPythonTag);
  if (tag != json.end() && tag->is_string()) return Tagged(json);
  EmptyDict();
  Mark();
  for (const auto& [name, value] : json.items()) {
    String(name);
    Python(value);
  }
  SetItems();
}

// As Python and torch write it: LONG1, which is the only one that torch.load(weights_only=True) takes, up to its 255
// bytes.
void PickleWriter::BigInteger(std::string_view bytes) {
  const bool is_short = bytes.size() <= 0xFF;
  Emit(is_short ? PickleOpcode::kLong1 : PickleOpcode::kLong4);
  EmitInteger(bytes.size(), is_short ? 1 : 4);
  bytes_.append(bytes);
}

template <typename Push>
void PickleWriter::Called(std::string_view global, Push push_arguments) {
  Global(global);
  Mark();
  push_arguments();
  Tuple();
  Reduce();
}

// Protocol 2 has no bytes: _codecs.encode of a text in which each byte is the character with that code, in UTF-8.
void PickleWriter::Bytes(std::string_view bytes) {
  std::string characters;
  for (const char byte : bytes) {
    const auto value = static_cast<uint8_t>(byte);
    if (value >= 0x80) characters.push_back(static_cast<char>(0xC0 | value >> 6));
    characters.push_back(static_cast<char>(value >= 0x80 ? 0x80 | (value & 0x3F) : value));
  }
  Called("_codecs.encode", [&] {
    String(characters);
    String("latin1");
  });
}

void PickleWriter::Pairs(const PythonJson& pairs) {
  Mark();
  for (const PythonJson& pair : pairs) {
    if (pair.is_array() && pair.size() == 2) Items(pair);
  }
  SetItems();
}

bool PickleWriter::TaggedBytes(std::string_view tag, const std::string& bytes) {
  if (tag == "int") {
    BigInteger(bytes);
  } else if (tag == "str") {
    String(bytes);
  } else if (tag == "bytes") {
    Bytes(bytes);
  } else if (tag == "bytearray") {
    Called("builtins.bytearray", [&] {
      if (!bytes.empty()) Bytes(bytes);
    });
  } else {
    return false;
  }
  return true;
}

bool PickleWriter::TaggedItems(std::string_view tag, const PythonJson& items) {
  if (tag == "tuple" && items.empty()) {
    EmptyTuple();
  } else if (tag == "tuple") {
    Mark();
    Items(items);
    Tuple();
  } else if (tag == "dict") {
    EmptyDict();
    Pairs(items);
  } else if (tag == "OrderedDict") {
    Global("collections.OrderedDict");
    EmptyTuple();
    Reduce();
    Pairs(items);
  } else if (tag == "Counter") {
    Called("collections.Counter", [&] {
      EmptyDict();
      Pairs(items);
    });
  } else if (tag == "set" || tag == "frozenset") {
    Called(tag == "set" ? "builtins.set" : "builtins.frozenset", [&] { Python(items); });
  } else if (tag == "complex") {
    Called("builtins.complex", [&] { Items(items); });
  } else {
    return false;
  }
  return true;
}

// The inverse of Converter in json_of_pickle.cc, tag by tag. Members of another type than expected count as empty:
// `json` may come from a checkpoint, and any result is a valid pickle.
void PickleWriter::Tagged(const PythonJson& json) {
  const auto tag = json[kPythonTag].get<std::string>();
  const auto text = [&](const char* member) {
    const auto at = json.find(member);
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  // Before the tags: a literal tensor becomes a call with a storage, which only the caller can number.
  if (write_tensor != nullptr) {
    if (const std::optional<LiteralTensor> tensor = TensorOfJson(json)) return write_tensor(*tensor);
  }
  if (tag == kNumpyTag) return IsNumpyJson(json) ? WriteNumpy(json, *this) : None();
  if (tag == kReferenceTag) return write_reference != nullptr ? write_reference(text("name")) : None();
  const PythonJson empty = PythonJson::array();
  const auto found = json.find("items");
  const PythonJson& items = found != json.end() && found->is_array() ? *found : empty;
  if (tag == "float") {
    using Limits = std::numeric_limits<double>;
    const std::string value = text("value");
    return Float(value == "inf" ? Limits::infinity() : value == "-inf" ? -Limits::infinity() : Limits::quiet_NaN());
  }
  if (tag == "global") return Global(text("name"));
  if (TaggedBytes(tag, absl::HexStringToBytes(text("hex"))) || TaggedItems(tag, items)) return;
  Called(text("name"), [&] { Items(items); });
}

std::string PickleWriter::Finish() && {
  Emit(PickleOpcode::kStop);
  return std::move(bytes_);
}

}  // namespace fsdp
