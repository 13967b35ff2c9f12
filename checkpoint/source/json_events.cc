// SPDX-License-Identifier: Apache-2.0
//
// nlohmann's SAX parser checks syntax and UTF-8. The Adapter adds what it does not check: names are unique in an
// object, nesting is bounded, and no NUL ends the text early. It keeps the path of names to the current value for
// messages, and for each open object the set of names seen: memory does not grow with values.
#include "fsdp/checkpoint/source/json_events.h"

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// Adapts nlohmann's event interface, whose functions return false to stop.
class Adapter {
 public:
  using json = nlohmann::json;

  explicit Adapter(JsonVisitor& visitor) : visitor_(visitor) {}

  const absl::Status& status() const { return status_; }

  bool null() { return Value(visitor_.Other(Place(), "null", nullptr)); }
  bool boolean(bool value) { return Value(visitor_.Other(Place(), value ? "true" : "false", value)); }
  bool number_integer(json::number_integer_t value) {
    return Value(visitor_.Other(Place(), "a negative number", value));
  }
  bool number_unsigned(json::number_unsigned_t value) { return Value(visitor_.Unsigned(Place(), value)); }
  // Also called for integers beyond 64 bits, which the parser rounds to the nearest double.
  bool number_float(json::number_float_t value, const std::string& token) {
    if (token.find_first_of(".eE") == token.npos) return Value(visitor_.LargeInteger(Place(), token));
    return Value(visitor_.Other(Place(), "a number that is no unsigned integer of 64 bits", value));
  }
  bool string(std::string& value) { return Value(visitor_.String(Place(), value)); }
  bool binary(json::binary_t&) { return Value(visitor_.Other(Place(), "binary data", nullptr)); }

  bool start_object(std::size_t) {
    if (!Value(visitor_.StartObject(Place())) || !Deeper()) return false;
    objects_.push_back({{}, 0});
    return true;
  }

  bool key(std::string& name) {
    Object& object = objects_.back();
    // Remove the name of the previous member of the same object.
    if (names_.size() == objects_.size()) names_.pop_back();
    if (!object.seen.insert(name).second) {
      return Fail(absl::DataLossError(absl::StrCat(Parent(), Quote(name), " appears twice")));
    }
    names_.push_back(std::move(name));
    return true;
  }

  bool end_object() {
    if (names_.size() == objects_.size()) names_.pop_back();
    objects_.pop_back();
    --depth_;
    return Value(visitor_.EndObject(Place()));
  }

  bool start_array(std::size_t) {
    if (!Value(visitor_.StartArray(Place())) || !Deeper()) return false;
    ++(objects_.empty() ? outer_arrays_ : objects_.back().arrays);
    return true;
  }

  bool end_array() {
    --(objects_.empty() ? outer_arrays_ : objects_.back().arrays);
    --depth_;
    return Value(visitor_.EndArray(Place()));
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line ...: reason"
    if (const size_t colon = what.find(": "); colon != what.npos) what.remove_prefix(colon + 2);
    return Fail(absl::DataLossError(absl::StrCat("not JSON at byte ", position, ": ", Printable(what))));
  }

 private:
  struct Object {
    absl::flat_hash_set<std::string> seen;
    int arrays;
  };

  JsonPlace Place() const { return {names_, objects_.empty() ? outer_arrays_ : objects_.back().arrays}; }

  std::string Parent() const { return names_.empty() ? "" : absl::StrCat(Quote(names_.back()), ": "); }

  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  bool Value(absl::Status status) { return status.ok() || Fail(std::move(status)); }

  bool Deeper() {
    return ++depth_ <= kMaxJsonDepth ||
           Fail(absl::DataLossError(absl::StrCat("JSON is nested more than ", kMaxJsonDepth, " deep")));
  }

  JsonVisitor& visitor_;
  absl::Status status_;
  std::vector<std::string> names_;  // one for each open object that has a current member, so at most objects_.size()
  std::vector<Object> objects_;
  int outer_arrays_ = 0;  // arrays outside any object
  int depth_ = 0;
};

}  // namespace

absl::Status JsonVisitor::LargeInteger(const JsonPlace& place, std::string_view) {
  return Other(place, "a number that is no unsigned integer of 64 bits", nullptr);
}

absl::Status VisitJson(std::string_view text, JsonVisitor& visitor) {
  // The parser takes a NUL for the end of its input, and would accept any bytes after it.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    return absl::DataLossError(absl::StrCat("not JSON at byte ", nul, ": a NUL byte"));
  }
  Adapter adapter(visitor);
  const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
  if (!ok && adapter.status().ok()) return absl::DataLossError("not JSON");
  return adapter.status();
}

}  // namespace fsdp
