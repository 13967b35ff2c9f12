// SPDX-License-Identifier: Apache-2.0
//
// Thompson's construction: a fragment of states for each part of the pattern, whose open ends are joined to what
// follows. The parser is recursive descent, and the nesting of groups is bounded.
#include "fsdp/checkpoint/foreign/peft/name_pattern.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr size_t kMaxPatternBytes = 1024;
constexpr int kMaxDepth = 32;

using Bytes = std::bitset<256>;

Bytes BytesIf(int (*is_one)(int)) {
  Bytes bytes;
  for (int byte = 0; byte < 128; ++byte) bytes[byte] = is_one(byte) != 0;
  return bytes;
}

Bytes OneByte(char byte) {
  Bytes bytes;
  bytes.set(static_cast<unsigned char>(byte));
  return bytes;
}

int IsWordByte(int byte) { return std::isalnum(byte) != 0 || byte == '_' ? 1 : 0; }

// The bytes that an escape stands for; none for one that is not known, such as the reference to a group.
Bytes BytesOfEscape(char escaped) {
  switch (escaped) {
    case 'd':
      return BytesIf(std::isdigit);
    case 'D':
      return ~BytesIf(std::isdigit);
    case 'w':
      return BytesIf(IsWordByte);
    case 'W':
      return ~BytesIf(IsWordByte);
    case 's':
      return BytesIf(std::isspace);
    case 'S':
      return ~BytesIf(std::isspace);
    default:
      return std::isalnum(static_cast<unsigned char>(escaped)) != 0 ? Bytes() : OneByte(escaped);
  }
}

bool IsPlain(std::string_view pattern) {
  return !pattern.empty() && std::all_of(pattern.begin(), pattern.end(), [](char c) {
    return IsWordByte(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
  });
}

// Whether `name` ends with `plain`, in which a dot stands for any byte, at its beginning or after a dot.
bool EndsWithPlain(std::string_view name, std::string_view plain) {
  if (name.size() < plain.size()) return false;
  const std::string_view end = name.substr(name.size() - plain.size());
  if (end.size() < name.size() && name[name.size() - end.size() - 1] != '.') return false;
  return std::equal(plain.begin(), plain.end(), end.begin(), [](char p, char c) { return p == '.' || p == c; });
}

}  // namespace

// Thompson's construction: each part of the expression becomes a fragment of a nondeterministic automaton with open
// ends, which the next part closes. Matching follows all states side by side (MatchesEndOf), so its time is states x
// bytes and no expression can make it exponential, as it can with backtracking.
class NamePatternParser {
 public:
  explicit NamePatternParser(const std::string& text) : text_(text) {}

  absl::StatusOr<NamePattern> Parse() {
    FSDP_ASSIGN_OR_RETURN(Fragment whole, Alternatives(0));
    if (at_ != text_.size()) return Unsupported(absl::StrCat("\"", text_.substr(at_, 1), "\" without its partner"));
    Join(whole, New({.kind = NamePattern::Kind::kAccept}));
    pattern_.start_ = whole.start;
    return std::move(pattern_);
  }

 private:
  // An open end: the state whose `next`, or else `other`, is still to be set.
  struct End {
    size_t state = 0;
    bool is_other = false;
  };
  struct Fragment {
    size_t start = 0;
    std::vector<End> ends;
  };

  absl::Status Unsupported(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression ", Quote(text_), " has ", what, ", which is not supported"));
  }

  size_t New(NamePattern::State state) {
    pattern_.states_.push_back(state);
    return pattern_.states_.size() - 1;
  }

  void Join(const Fragment& fragment, size_t next) {
    for (const End& end : fragment.ends) {
      NamePattern::State& state = pattern_.states_[end.state];
      (end.is_other ? state.other : state.next) = next;
    }
  }

  // A state that reads nothing, for an empty part.
  Fragment Nothing() {
    const size_t state = New({.kind = NamePattern::Kind::kSplit});
    return {state, {{state, false}, {state, true}}};
  }

  Fragment One(NamePattern::Kind kind, const Bytes& bytes) {
    const size_t state = New({.kind = kind, .bytes = bytes});
    return {state, {{state, false}}};
  }

  absl::StatusOr<Fragment> Alternatives(int depth) {
    if (depth > kMaxDepth) return Unsupported("groups nested deeper than 32");
    FSDP_ASSIGN_OR_RETURN(Fragment all, Sequence(depth));
    while (at_ < text_.size() && text_[at_] == '|') {
      ++at_;
      FSDP_ASSIGN_OR_RETURN(const Fragment next, Sequence(depth));
      const size_t split = New({.kind = NamePattern::Kind::kSplit, .next = all.start, .other = next.start});
      all.start = split;
      all.ends.insert(all.ends.end(), next.ends.begin(), next.ends.end());
    }
    return all;
  }

  absl::StatusOr<Fragment> Sequence(int depth) {
    Fragment all = Nothing();
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      FSDP_ASSIGN_OR_RETURN(Fragment next, Repeated(depth));
      Join(all, next.start);
      all.ends = std::move(next.ends);
    }
    return all;
  }

  // "x*" is a split that leads into x, whose ends lead back to the split; "x+" enters at x; "x?" has the ends of both.
  absl::StatusOr<Fragment> Repeated(int depth) {
    FSDP_ASSIGN_OR_RETURN(Fragment one, Atom(depth));
    if (at_ == text_.size()) return one;
    const char repeat = text_[at_];
    if (repeat == '{') return Unsupported("\"{\"");
    if (repeat != '*' && repeat != '+' && repeat != '?') return one;
    ++at_;
    const size_t split = New({.kind = NamePattern::Kind::kSplit, .next = one.start});
    Fragment repeated = {repeat == '+' ? one.start : split, {{split, true}}};
    if (repeat == '?') {
      repeated.ends.insert(repeated.ends.end(), one.ends.begin(), one.ends.end());
    } else {
      Join(one, split);
    }
    // Whether a match is the shortest does not change whether there is one.
    if (at_ < text_.size() && text_[at_] == '?') ++at_;
    if (at_ < text_.size() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) {
      return Unsupported("a repetition of a repetition");
    }
    return repeated;
  }

  absl::StatusOr<Fragment> Atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        return Group(depth);
      case '[':
        return Class();
      case '.': {
        Bytes any = ~OneByte('\n');
        return One(NamePattern::Kind::kBytes, any);
      }
      case '^':
        return One(NamePattern::Kind::kBegin, {});
      case '$':
        return One(NamePattern::Kind::kEnd, {});
      case '\\': {
        FSDP_ASSIGN_OR_RETURN(const Bytes bytes, Escape());
        return One(NamePattern::Kind::kBytes, bytes);
      }
      case '*':
      case '+':
      case '?':
      case '{':
        return Unsupported(absl::StrCat("\"", std::string(1, c), "\" after nothing"));
      default:
        return One(NamePattern::Kind::kBytes, OneByte(c));
    }
  }

  absl::StatusOr<Bytes> Escape() {
    const Bytes bytes = at_ == text_.size() ? Bytes() : BytesOfEscape(text_[at_]);
    if (bytes.none()) return Unsupported(absl::StrCat("\"\\", text_.substr(at_, 1), "\""));
    ++at_;
    return bytes;
  }

  absl::StatusOr<Fragment> Group(int depth) {
    if (text_.compare(at_, 2, "?:") == 0) {
      at_ += 2;
    } else if (text_.compare(at_, 1, "?") == 0) {
      return Unsupported(absl::StrCat("\"(", text_.substr(at_, 2), "\""));
    }
    FSDP_ASSIGN_OR_RETURN(Fragment inner, Alternatives(depth + 1));
    if (at_ == text_.size()) return Unsupported("\"(\" without its partner");
    ++at_;  // ')', at which Alternatives stops
    return inner;
  }

  absl::StatusOr<Fragment> Class() {
    const bool is_inverse = at_ < text_.size() && text_[at_] == '^';
    if (is_inverse) ++at_;
    Bytes bytes;
    const size_t first = at_;
    while (at_ < text_.size() && (text_[at_] != ']' || at_ == first)) {
      const char c = text_[at_++];
      if (c == '\\') {
        FSDP_ASSIGN_OR_RETURN(const Bytes escaped, Escape());
        bytes |= escaped;
        continue;
      }
      const bool is_range = at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']';
      const auto low = static_cast<unsigned char>(c);
      const auto high = static_cast<unsigned char>(is_range ? text_[at_ + 1] : c);
      if (is_range && (text_[at_ + 1] == '\\' || high < low)) return Unsupported("a range of that kind");
      for (int byte = low; byte <= high; ++byte) bytes.set(byte);
      if (is_range) at_ += 2;
    }
    if (at_ == text_.size()) return Unsupported("\"[\" without its partner");
    ++at_;
    return One(NamePattern::Kind::kBytes, is_inverse ? ~bytes : bytes);
  }

  const std::string& text_;
  size_t at_ = 0;
  NamePattern pattern_;
};

absl::StatusOr<NamePattern> NamePattern::Create(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the regular expression ", Quote(pattern), " has ", pattern.size(),
                                                   " bytes, expected at most ", kMaxPatternBytes));
  }
  if (!IsPlain(pattern)) return NamePatternParser(pattern).Parse();
  NamePattern plain;
  plain.plain_ = pattern;
  return plain;
}

void NamePattern::Enter(size_t state, size_t at, std::string_view name, std::vector<bool>& active) const {
  std::vector<size_t> entered = {state};
  while (!entered.empty()) {
    const size_t now = entered.back();
    entered.pop_back();
    if (active[now]) continue;
    active[now] = true;
    const State& of = states_[now];
    const bool leads_on =
        of.kind == Kind::kSplit || (of.kind == Kind::kBegin && at == 0) || (of.kind == Kind::kEnd && at == name.size());
    if (!leads_on) continue;
    entered.push_back(of.next);
    if (of.kind == Kind::kSplit) entered.push_back(of.other);
  }
}

// PEFT asks re.match(".*\.PATTERN$") and PATTERN itself: a match may begin at the start of the name or after any dot.
bool NamePattern::MatchesEndOf(std::string_view name) const {
  if (states_.empty()) return EndsWithPlain(name, plain_);
  std::vector<bool> active(states_.size());
  for (size_t at = 0;; ++at) {
    if (at == 0 || name[at - 1] == '.') Enter(start_, at, name, active);
    if (at == name.size()) break;
    std::vector<bool> next(states_.size());
    for (size_t state = 0; state < states_.size(); ++state) {
      const bool reads = active[state] && states_[state].kind == Kind::kBytes &&
                         states_[state].bytes[static_cast<unsigned char>(name[at])];
      if (reads) Enter(states_[state].next, at + 1, name, next);
    }
    active = std::move(next);
  }
  for (size_t state = 0; state < states_.size(); ++state) {
    if (active[state] && states_[state].kind == Kind::kAccept) return true;
  }
  return false;
}

}  // namespace fsdp
