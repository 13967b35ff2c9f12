// SPDX-License-Identifier: Apache-2.0
//
// A recursive descent over the text, as deep as kMaxJsonDepth allows. It keeps the path of names to the current value
// for messages, and for each open object the digests of the names seen: memory does not grow with values. Two names
// with one digest can only be made on purpose, and are refused as one name.
#include "fsdp/checkpoint/source/json_events.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_token.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

// The memory of a digest in SeenNames, when the set has just grown and both tables exist.
constexpr size_t kSeenBytes = 58;

constexpr char kNoUnsigned[] = "a number that is no unsigned integer of 64 bits";

// The integer that `token` spells as a whole; false if it does not fit.
template <typename Integer>
bool ReadInteger(std::string_view token, Integer& value) {
  return std::from_chars(token.data(), token.data() + token.size(), value).ec == std::errc();
}

// The digests of the names of an object. Few names are compared one by one: a header may have a million objects of
// three.
class SeenNames {
 public:
  // False if `digest` is there already.
  bool Add(const Digest& digest) {
    const Key key = {digest.high, digest.low};
    if (count_ < kFew) {
      const auto end = few_.begin() + static_cast<std::ptrdiff_t>(count_);
      if (std::find(few_.begin(), end, key) != end) return false;
      few_[count_++] = key;
      return true;
    }
    if (many_.empty()) many_.insert(few_.begin(), few_.end());
    const bool is_new = many_.insert(key).second;
    count_ += is_new ? 1 : 0;
    return is_new;
  }

  size_t size() const { return count_; }

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  static constexpr size_t kFew = 8;

  size_t count_ = 0;
  std::array<Key, kFew> few_;
  absl::flat_hash_set<Key> many_;  // all, if there are more than kFew
};

class Reader {
 public:
  Reader(std::string_view text, JsonVisitor& visitor, DecodeBudget& budget)
      : text_(text), visitor_(visitor), budget_(budget) {}

  absl::Status Read() {
    // A byte order mark, which some editors write.
    if (text_.substr(0, 3) == "\xef\xbb\xbf") at_ = 3;
    FSDP_RETURN_IF_ERROR(ReadValue());
    SkipBlanks();
    return at_ == text_.size() ? absl::OkStatus() : NotJson(at_, "more text after the value");
  }

 private:
  struct Object {
    SeenNames seen;
    int arrays = 0;
  };

  absl::Status ReadValue() {
    SkipBlanks();
    if (at_ == text_.size()) return NotJson(at_, "the text ends, expected a value");
    switch (text_[at_]) {
      case '{':
        return ReadObject();
      case '[':
        return ReadArray();
      case '"':
        return ReadString();
      case 't':
        return ReadWord("true", true);
      case 'f':
        return ReadWord("false", false);
      case 'n':
        return ReadWord("null", nullptr);
      case '-':
        return ReadNumber();
      default:
        return text_[at_] >= '0' && text_[at_] <= '9' ? ReadNumber() : NotJson(at_, "expected a value");
    }
  }

  absl::Status ReadObject() {
    FSDP_RETURN_IF_ERROR(visitor_.StartObject(Place()));
    FSDP_RETURN_IF_ERROR(GoDeeper());
    objects_.emplace_back();
    ++at_;
    if (!Consume('}')) {
      do {
        FSDP_RETURN_IF_ERROR(ReadName());
        if (!Consume(':')) return NotJson(at_, "expected ':' after a name");
        FSDP_RETURN_IF_ERROR(ReadValue());
        names_.pop_back();
      } while (Consume(','));
      if (!Consume('}')) return NotJson(at_, "expected ',' or '}' after a member");
    }
    budget_.Return(objects_.back().seen.size() * kSeenBytes);
    objects_.pop_back();
    --depth_;
    return visitor_.EndObject(Place());
  }

  absl::Status ReadName() {
    SkipBlanks();
    if (at_ == text_.size() || text_[at_] != '"') return NotJson(at_, "expected the name of a member in quotes");
    FSDP_ASSIGN_OR_RETURN(const std::string_view token, ScanJsonString(text_, at_));
    at_ += token.size();
    std::string name = UnescapeJsonString(token);
    FSDP_RETURN_IF_ERROR(budget_.Take(kSeenBytes));
    if (!objects_.back().seen.Add(DigestOf(std::string_view(name)))) {
      const std::string parent = names_.empty() ? "" : absl::StrCat(Quote(names_.back()), ": ");
      return absl::DataLossError(absl::StrCat(parent, Quote(name), " appears twice"));
    }
    names_.push_back(std::move(name));
    return absl::OkStatus();
  }

  absl::Status ReadArray() {
    FSDP_RETURN_IF_ERROR(visitor_.StartArray(Place()));
    FSDP_RETURN_IF_ERROR(GoDeeper());
    ++Arrays();
    ++at_;
    if (!Consume(']')) {
      do {
        FSDP_RETURN_IF_ERROR(ReadValue());
      } while (Consume(','));
      if (!Consume(']')) return NotJson(at_, "expected ',' or ']' after an element");
    }
    --Arrays();
    --depth_;
    return visitor_.EndArray(Place());
  }

  absl::Status ReadString() {
    FSDP_ASSIGN_OR_RETURN(const std::string_view token, ScanJsonString(text_, at_));
    at_ += token.size();
    const std::string_view inside = token.substr(1, token.size() - 2);
    if (inside.find('\\') == inside.npos) return visitor_.String(Place(), inside);
    return visitor_.String(Place(), UnescapeJsonString(token));
  }

  absl::Status ReadNumber() {
    FSDP_ASSIGN_OR_RETURN(const std::string_view token, ScanJsonNumber(text_, at_));
    const size_t begin = std::exchange(at_, at_ + token.size());
    if (token.find_first_of(".eE") == token.npos) return VisitInteger(token);
    double value = 0;
    // Infinity for a number beyond double's range.
    if (!absl::SimpleAtod({token.data(), token.size()}, &value) || !std::isfinite(value)) {
      return NotJson(begin, "a number that is too large");
    }
    return visitor_.Other(Place(), kNoUnsigned, value);
  }

  absl::Status VisitInteger(std::string_view token) {
    if (token[0] == '-') {
      int64_t value = 0;
      if (ReadInteger(token, value)) return visitor_.Other(Place(), "a negative number", value);
    } else {
      uint64_t value = 0;
      if (ReadInteger(token, value)) return visitor_.Unsigned(Place(), value);
    }
    return visitor_.LargeInteger(Place(), token);
  }

  absl::Status ReadWord(std::string_view word, const json& value) {
    if (text_.substr(at_, word.size()) != word) return NotJson(at_, "expected a value");
    at_ += word.size();
    return visitor_.Other(Place(), word, value);
  }

  void SkipBlanks() {
    const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }

  // Skips `c`, and blanks before it; false if another character is there.
  bool Consume(char c) {
    SkipBlanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  absl::Status GoDeeper() {
    if (++depth_ <= kMaxJsonDepth) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("JSON is nested more than ", kMaxJsonDepth, " deep"));
  }

  // The number of open arrays inside the innermost object.
  int& Arrays() { return objects_.empty() ? outer_arrays_ : objects_.back().arrays; }

  JsonPlace Place() { return {names_, Arrays()}; }

  const std::string_view text_;
  size_t at_ = 0;
  JsonVisitor& visitor_;
  DecodeBudget& budget_;
  std::vector<std::string> names_;  // one for each open object that has a current member
  std::vector<Object> objects_;
  int outer_arrays_ = 0;  // arrays outside any object
  int depth_ = 0;
};

}  // namespace

absl::Status JsonVisitor::LargeInteger(const JsonPlace& place, std::string_view) {
  return Other(place, kNoUnsigned, nullptr);
}

absl::Status VisitJson(std::string_view text, JsonVisitor& visitor, DecodeBudget& budget) {
  // Other readers take a NUL for the end of a text, and bytes after it would be hidden from them.
  if (const size_t nul = text.find('\0'); nul != text.npos) return NotJson(nul, "a NUL byte");
  return Reader(text, visitor, budget).Read();
}

absl::Status VisitJson(std::string_view text, JsonVisitor& visitor) {
  DecodeBudget budget(text.size());
  return VisitJson(text, visitor, budget);
}

}  // namespace fsdp
