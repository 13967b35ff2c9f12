// SPDX-License-Identifier: Apache-2.0
//
// Each text is parsed to a tree in one canonical form: members sorted by name, numbers spelled in one way. Two trees
// are then compared in parallel, which also finds the place of the first difference. The depth of both is bounded by
// VisitJson. A text that VisitJson refuses (a name that appears twice, NaN) is compared byte by byte, so that nothing
// is called equal that a reader might take for two values.
#include "fsdp/checkpoint/text_difference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/source/json_events.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

struct Value {
  enum class Kind { kNumber, kString, kWord, kArray, kObject };

  Kind kind = Kind::kWord;
  std::string text = {};                // of a number (canonical), a string, or a word: null, true, false
  std::vector<std::string> names = {};  // of an object, sorted
  std::vector<Value> items = {};        // of an object or array
};

// An integral number is spelled as an integer, with all its digits, since an integer may have any number of them.
std::string Canonical(double number) {
  if (number == 0) return "0";
  return number == std::trunc(number) ? absl::StrFormat("%.0f", number) : absl::StrFormat("%.17g", number);
}

// Builds a tree with a normal form: members sorted, numbers spelled one way, names of parameters without the prefix.
// Two texts of JSON are equal if their trees are.
class TreeBuilder final : public JsonVisitor {
 public:
  // `prefix`: of names of parameters, which are built without it.
  explicit TreeBuilder(const std::string& prefix) : prefix_(prefix) {}

  absl::Status StartObject(const JsonPlace& place) override { return Open(place, Value::Kind::kObject); }
  absl::Status EndObject(const JsonPlace&) override { return Close(); }
  absl::Status StartArray(const JsonPlace& place) override { return Open(place, Value::Kind::kArray); }
  absl::Status EndArray(const JsonPlace&) override { return Close(); }
  absl::Status String(const JsonPlace& place, std::string_view value) override {
    const bool is_name = place.arrays == 1 && !place.names.empty() &&
                         (place.names.back() == "params" || place.names.back() == "param_names");
    if (is_name && value.substr(0, prefix_.size()) == prefix_) value.remove_prefix(prefix_.size());
    return Add(place, {Value::Kind::kString, std::string(value)});
  }
  absl::Status Unsigned(const JsonPlace& place, uint64_t value) override {
    return Add(place, {Value::Kind::kNumber, absl::StrCat(value)});
  }
  absl::Status LargeInteger(const JsonPlace& place, std::string_view literal) override {
    return Add(place, {Value::Kind::kNumber, std::string(literal)});
  }
  absl::Status Other(const JsonPlace& place, std::string_view what, const nlohmann::json& value) override {
    if (value.is_number_integer()) return Add(place, {Value::Kind::kNumber, absl::StrCat(value.get<int64_t>())});
    if (value.is_number()) return Add(place, {Value::Kind::kNumber, Canonical(value.get<double>())});
    return Add(place, {Value::Kind::kWord, std::string(what)});
  }

  // The whole text. Precondition: VisitJson returned OK.
  Value Take() { return std::move(root_.items.front()); }

 private:
  // An object or array whose end has not come yet, and its name in an object around it.
  struct Opened {
    std::string name;
    Value value;
  };

  Value& Innermost() { return opened_.empty() ? root_ : opened_.back().value; }

  std::string NameAt(const JsonPlace& place) {
    return Innermost().kind == Value::Kind::kObject ? place.names[place.names.size() - 1] : "";
  }

  absl::Status Add(const JsonPlace& place, Value value) { return AddNamed(NameAt(place), std::move(value)); }

  absl::Status AddNamed(std::string name, Value value) {
    Value& around = Innermost();
    if (around.kind == Value::Kind::kObject) around.names.push_back(std::move(name));
    around.items.push_back(std::move(value));
    return absl::OkStatus();
  }

  absl::Status Open(const JsonPlace& place, Value::Kind kind) {
    std::string name = NameAt(place);
    opened_.push_back({std::move(name), {kind}});
    return absl::OkStatus();
  }

  absl::Status Close() {
    Opened closed = std::move(opened_.back());
    opened_.pop_back();
    if (closed.value.kind == Value::Kind::kObject) Sort(closed.value);
    return AddNamed(std::move(closed.name), std::move(closed.value));
  }

  static void Sort(Value& object) {
    std::vector<size_t> order(object.names.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return object.names[a] < object.names[b]; });
    Value sorted = {Value::Kind::kObject};
    for (const size_t i : order) {
      sorted.names.push_back(std::move(object.names[i]));
      sorted.items.push_back(std::move(object.items[i]));
    }
    object = std::move(sorted);
    SortTagged(object);
  }

  // {"__python__": "set", "items": [...]}: by the text of the items.
  static void SortTagged(Value& object) {
    static const auto* unordered = new std::set<std::string>{"dict", "set", "frozenset", "Counter"};
    if (object.names != std::vector<std::string>{"__python__", "items"}) return;
    if (object.items[0].kind != Value::Kind::kString || unordered->count(object.items[0].text) == 0) return;
    std::vector<std::pair<std::string, Value>> items;
    for (Value& item : object.items[1].items) {
      std::string text;
      Append(item, text);
      items.emplace_back(std::move(text), std::move(item));
    }
    std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < items.size(); ++i) object.items[1].items[i] = std::move(items[i].second);
  }

  // Appends a text that only equal values have.
  static void Append(const Value& value, std::string& out) {
    absl::StrAppend(&out, static_cast<int>(value.kind), ":", value.text.size(), ":", value.text, value.items.size(),
                    "(");
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (!value.names.empty()) absl::StrAppend(&out, value.names[i].size(), ":", value.names[i]);
      Append(value.items[i], out);
    }
    out += ')';
  }

  const std::string& prefix_;
  Value root_ = {Value::Kind::kArray};
  std::vector<Opened> opened_;
};

std::optional<Value> Parse(const std::string& text, const std::string& prefix) {
  TreeBuilder builder(prefix);
  if (!VisitJson(text, builder).ok()) return std::nullopt;
  return builder.Take();
}

std::string Shown(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kString:
      return Quote(value.text);
    case Value::Kind::kArray:
      return absl::StrCat("a list of ", value.items.size());
    case Value::Kind::kObject:
      return absl::StrCat("an object of ", value.items.size());
    default:
      return Printable(value.text);
  }
}

// Counts the differences of two trees, and describes the first.
class Differences {
 public:
  void Compare(const Value& a, const Value& b) {
    if (a.kind != b.kind || a.text != b.text) return Found(absl::StrCat(Shown(a), " in A, ", Shown(b), " in B"));
    if (a.kind == Value::Kind::kObject) return CompareMembers(a, b);
    if (a.items.size() != b.items.size()) Found(absl::StrCat(Shown(a), " in A, ", Shown(b), " in B"));
    for (size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i) {
      At(absl::StrCat("[", i, "]"), [&] { Compare(a.items[i], b.items[i]); });
    }
  }

  std::optional<std::string> ToString() const {
    if (count_ == 0) return std::nullopt;
    if (count_ == 1) return absl::StrCat("differs", first_);
    return absl::StrCat("differs in ", count_, " places, first", first_);
  }

 private:
  void CompareMembers(const Value& a, const Value& b) {
    size_t i = 0;
    size_t j = 0;
    while (i < a.names.size() || j < b.names.size()) {
      const bool in_a = i < a.names.size() && (j == b.names.size() || a.names[i] <= b.names[j]);
      const bool in_b = j < b.names.size() && (i == a.names.size() || b.names[j] <= a.names[i]);
      At(absl::StrCat("[", Quote(in_a ? a.names[i] : b.names[j]), "]"), [&] {
        if (in_a && in_b) return Compare(a.items[i], b.items[j]);
        Found(in_a ? absl::StrCat(Shown(a.items[i]), " in A only") : absl::StrCat(Shown(b.items[j]), " in B only"));
      });
      i += in_a ? 1 : 0;
      j += in_b ? 1 : 0;
    }
  }

  template <typename Compared>
  void At(const std::string& step, const Compared& compare) {
    path_.push_back(step);
    compare();
    path_.pop_back();
  }

  void Found(const std::string& what) {
    if (++count_ > 1) return;
    first_ = path_.empty() ? ": " : " at ";
    for (const std::string& step : path_) first_ += step;
    absl::StrAppend(&first_, path_.empty() ? "" : ": ", what);
  }

  int64_t count_ = 0;
  std::string first_;
  std::vector<std::string> path_;
};

std::string DifferenceOfBytes(const std::string& a, const std::string& b) {
  const size_t at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const size_t from = at - std::min<size_t>(at, 16);
  return absl::StrCat("differs from byte ", at, " on: ", Quote(a.substr(from, 48)), " in A, ",
                      Quote(b.substr(from, 48)), " in B");
}

}  // namespace

std::optional<std::string> CompareTexts(const std::string& a, const std::string& b, const NamePrefixes& prefixes) {
  if (a == b && prefixes.a == prefixes.b) return std::nullopt;
  const std::optional<Value> value_a = Parse(a, prefixes.a);
  const std::optional<Value> value_b = value_a ? Parse(b, prefixes.b) : std::nullopt;
  if (!value_b) return DifferenceOfBytes(a, b);
  Differences differences;
  differences.Compare(*value_a, *value_b);
  return differences.ToString();
}

}  // namespace fsdp
