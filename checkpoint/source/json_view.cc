// SPDX-License-Identifier: Apache-2.0
//
// VisitJson checks the whole text once. After that every string ends and every bracket is closed, so the scans below
// need no bounds, and a bracket or a comma means nothing only in strings.
#include "fsdp/checkpoint/source/json_view.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_events.h"
#include "fsdp/checkpoint/source/json_token.h"

namespace fsdp {
namespace {

class Checker final : public AnyJson {
 public:
  // Most readers would take it for a double, which is another number.
  absl::Status LargeInteger(const JsonPlace& place, std::string_view literal) override {
    const std::string name = place.names.empty() ? "" : absl::StrCat("member ", Quote(place.names.back()), ": ");
    return absl::DataLossError(absl::StrCat(name, Printable(literal), " is an integer beyond 64 bits"));
  }
};

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

size_t SkipBlanks(std::string_view text, size_t at) {
  while (at < text.size() && IsBlank(text[at])) ++at;
  return at;
}

// The byte after the string that begins at `at`.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
  return at + 1;
}

// The byte after the value that begins at `at`.
size_t EndOfValue(std::string_view text, size_t at) {
  if (text[at] == '"') return EndOfString(text, at);
  if (text[at] != '{' && text[at] != '[') return std::min(text.find_first_of(",]} \n\r\t", at), text.size());
  int depth = 0;
  while (true) {
    const char c = text[at];
    if (c == '"') {
      at = EndOfString(text, at);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
    if (depth == 0) return at;
  }
}

// The string that `token`, with its quotes, spells. Most have no escape.
std::string Unescape(std::string_view token) {
  const std::string_view inside = token.substr(1, token.size() - 2);
  if (inside.find('\\') == inside.npos) return std::string(inside);
  return UnescapeJsonString(token);
}

bool Spells(std::string_view token, std::string_view name) {
  const std::string_view inside = token.substr(1, token.size() - 2);
  if (inside.find('\\') == inside.npos) return inside == name;
  // An escape is longer than the character that it spells.
  return inside.size() > name.size() && UnescapeJsonString(token) == name;
}

// Appends a value without the blanks between its tokens.
void AppendCompact(std::string_view value, std::string& out) {
  out.reserve(out.size() + value.size());
  for (size_t at = 0; at < value.size();) {
    const size_t end = value[at] == '"' ? EndOfString(value, at) : at + 1;
    if (!IsBlank(value[at])) out.append(value.substr(at, end - at));
    at = end;
  }
}

absl::Status Wrong(const char* name, const std::string& expected) {
  return absl::DataLossError(absl::StrCat("member \"", name, "\" is missing or not ", expected));
}

// The elements of member `name`, each by `read`, which returns nullopt for an element of another type.
template <typename Value, typename Read>
absl::StatusOr<std::vector<Value>> Elements(const JsonView& object, const char* name, int64_t most,
                                            const char* expected, const Read& read) {
  FSDP_ASSIGN_OR_RETURN(const JsonView array, ArrayMember(object, name));
  const int64_t count = array.size();
  if (count > most) {
    return absl::DataLossError(absl::StrCat("member \"", name, "\" has ", count, " elements, expected at most ", most));
  }
  std::vector<Value> values;
  values.reserve(count);
  for (const JsonView element : array) {
    auto value = read(element);
    if (!value) return Wrong(name, expected);
    values.push_back(*std::move(value));
  }
  return values;
}

}  // namespace

absl::StatusOr<JsonView> JsonView::Parse(std::string_view text) {
  Checker checker;
  FSDP_RETURN_IF_ERROR(VisitJson(text, checker));
  // The parser skips a byte order mark.
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  const size_t begin = SkipBlanks(text, 0);
  const JsonView view(text.substr(begin, EndOfValue(text, begin) - begin));
  // Accessors take members by name, so only an object is useful.
  if (!view.is_object()) return absl::DataLossError("it is not a JSON object");
  return view;
}

std::optional<std::string> JsonView::string() const {
  if (text_[0] != '"') return std::nullopt;
  return Unescape(text_);
}

// Unsigned only: no number of the formats read here is negative, so one bound suffices.
std::optional<int64_t> JsonView::integer() const {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  const bool is_whole = error == std::errc() && end == text_.data() + text_.size();
  return is_whole && text_[0] != '-' ? std::optional<int64_t>(value) : std::nullopt;
}

template <typename Visit>
void JsonView::VisitMembers(const Visit& visit) const {
  if (!is_object()) return;
  for (size_t at = SkipBlanks(text_, 1); text_[at] != '}';) {
    const size_t name_end = EndOfString(text_, at);
    const size_t value = SkipBlanks(text_, SkipBlanks(text_, name_end) + 1);  // behind the colon
    const size_t value_end = EndOfValue(text_, value);
    if (!visit(text_.substr(at, name_end - at), JsonView(text_.substr(value, value_end - value)))) return;
    at = SkipBlanks(text_, value_end);
    if (text_[at] == ',') at = SkipBlanks(text_, at + 1);
  }
}

std::optional<JsonView> JsonView::Find(std::string_view name) const {
  std::optional<JsonView> found;
  VisitMembers([&](std::string_view token, const JsonView& value) {
    if (Spells(token, name)) found = value;
    return !found;
  });
  return found;
}

std::vector<std::pair<std::string, JsonView>> JsonView::members() const {
  std::vector<std::pair<std::string, JsonView>> members;
  VisitMembers([&](std::string_view token, const JsonView& value) {
    members.emplace_back(Unescape(token), value);
    return true;
  });
  return members;
}

JsonView::Iterator::Iterator(std::string_view array, size_t at) : array_(array) {
  begin_ = SkipBlanks(array, at);
  end_ = begin_;
  if (array[begin_] != ']') end_ = EndOfValue(array, begin_);
}

JsonView::Iterator& JsonView::Iterator::operator++() {
  const size_t next = SkipBlanks(array_, end_);
  return *this = Iterator(array_, array_[next] == ',' ? next + 1 : next);
}

JsonView::Iterator JsonView::begin() const { return is_array() ? Iterator(text_, 1) : end(); }

// The closing bracket; of any other value, a bracket that both ends share.
JsonView::Iterator JsonView::end() const { return is_array() ? Iterator(text_, text_.size() - 1) : Iterator("]", 0); }

int64_t JsonView::size() const {
  int64_t count = 0;
  for (auto at = begin(), last = end(); at != last; ++at) ++count;
  VisitMembers([&](std::string_view, const JsonView&) { return ++count > 0; });
  return count;
}

absl::StatusOr<int64_t> IntegerMember(const JsonView& object, const char* name) {
  const std::optional<JsonView> value = object.Find(name);
  const std::optional<int64_t> integer = value ? value->integer() : std::nullopt;
  if (!integer) return Wrong(name, "an integer from 0 to 2^63 - 1");
  return *integer;
}

absl::StatusOr<std::string> StringMember(const JsonView& object, const char* name) {
  const std::optional<JsonView> value = object.Find(name);
  std::optional<std::string> text = value ? value->string() : std::nullopt;
  if (!text) return Wrong(name, "a string");
  return *std::move(text);
}

absl::StatusOr<JsonView> ArrayMember(const JsonView& object, const char* name) {
  const std::optional<JsonView> value = object.Find(name);
  if (!value || !value->is_array()) return Wrong(name, "an array");
  return *value;
}

absl::StatusOr<std::vector<int64_t>> IntegerArrayMember(const JsonView& object, const char* name, int64_t most) {
  return Elements<int64_t>(object, name, most, "an array of integers",
                           [](const JsonView& value) { return value.integer(); });
}

absl::StatusOr<std::vector<std::string>> StringArrayMember(const JsonView& object, const char* name, int64_t most) {
  return Elements<std::string>(object, name, most, "an array of strings",
                               [](const JsonView& value) { return value.string(); });
}

size_t MostElements(const JsonView& array, std::string_view shortest) {
  return std::min<size_t>(array.size(), array.text().size() / shortest.size());
}

std::string UnknownMembers(const JsonView& object, const std::vector<std::string>& known) {
  std::string members;
  object.VisitMembers([&](std::string_view token, const JsonView& value) {
    const bool is_known =
        std::any_of(known.begin(), known.end(), [&](const std::string& name) { return Spells(token, name); });
    if (is_known) return true;
    absl::StrAppend(&members, ", ", std::string(token), ": ");
    AppendCompact(value.text(), members);
    return true;
  });
  return members;
}

std::string NameOf(const JsonView& object) {
  const absl::StatusOr<std::string> name = StringMember(object, "name");
  return Quote(name.ok() ? std::string_view(*name) : "");
}

}  // namespace fsdp
