// SPDX-License-Identifier: Apache-2.0
//
// JsonView: a value of a JSON text, read in place. A document (json_document.h) takes up to 38 times the memory of its
// text; a view takes none, so a text that may be hostile costs only the values that its reader keeps. Finding a member
// or an element scans the object or array: read each of them a few times, not once for each member.
//
// A view refers to the text, which must outlive it. Accessors return kDataLoss for a member that is missing or of the
// wrong type. Thread-compatible.
#ifndef FSDP_CHECKPOINT_SOURCE_JSON_VIEW_H_
#define FSDP_CHECKPOINT_SOURCE_JSON_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

class JsonView {
 public:
  class Iterator;

  // The object `text`, checked as a whole. kDataLoss for anything else, for what VisitJson refuses, and for an integer
  // beyond 64 bits, which is named with its member.
  static absl::StatusOr<JsonView> Parse(std::string_view text);

  // The value as it is written.
  std::string_view text() const { return text_; }

  bool is_object() const { return text_[0] == '{'; }
  bool is_array() const { return text_[0] == '['; }

  // nullopt for a value of another type. Integers are from 0 to 2^63 - 1.
  std::optional<std::string> string() const;
  std::optional<int64_t> integer() const;

  // The member `name`; nullopt if it is missing, or if this is not an object.
  std::optional<JsonView> Find(std::string_view name) const;

  // The members of an object, in the order of the text, with all names in memory: look at size() first.
  std::vector<std::pair<std::string, JsonView>> members() const;

  // The elements of an array, in order; none of any other value.
  Iterator begin() const;
  Iterator end() const;

  // The number of elements or members, counted one by one; 0 for any other value.
  int64_t size() const;

 private:
  friend std::string UnknownMembers(const JsonView& object, const std::vector<std::string>& known);

  explicit JsonView(std::string_view text) : text_(text) {}

  // Calls `visit(name, value)` for each member of an object until it returns false. `name` is as it is written.
  template <typename Visit>
  void VisitMembers(const Visit& visit) const;

  std::string_view text_;  // of a valid JSON value, without blanks around it
};

class JsonView::Iterator {
 public:
  JsonView operator*() const { return JsonView(array_.substr(begin_, end_ - begin_)); }
  Iterator& operator++();
  bool operator!=(const Iterator& other) const { return begin_ != other.begin_; }

 private:
  friend class JsonView;

  // The element whose text begins at or, after blanks, behind `at`; the end of the array after the last.
  Iterator(std::string_view array, size_t at);

  std::string_view array_;
  size_t begin_, end_;  // of the element in array_
};

// Member `name` of `object`. The arrays of more than `most` elements are kDataLoss.
absl::StatusOr<int64_t> IntegerMember(const JsonView& object, const char* name);
absl::StatusOr<std::string> StringMember(const JsonView& object, const char* name);
absl::StatusOr<JsonView> ArrayMember(const JsonView& object, const char* name);
absl::StatusOr<std::vector<int64_t>> IntegerArrayMember(const JsonView& object, const char* name, int64_t most);
absl::StatusOr<std::vector<std::string>> StringArrayMember(const JsonView& object, const char* name, int64_t most);

// How many elements of `array` can be as `shortest`, the shortest that is valid, or longer: for a reservation, since a
// vector that grows holds two copies, and a text of many invalid elements must not make it large.
size_t MostElements(const JsonView& array, std::string_view shortest);

// The members of `object` that are not among `known`, as text to append to other members, without blanks between
// tokens: ", \"a\": [1,2]"; may be empty. A later minor version may have written them; keeping them lets repair rewrite
// a manifest without loss.
std::string UnknownMembers(const JsonView& object, const std::vector<std::string>& known);

// Member "name" in quotes, for a message; an empty name in quotes without one.
std::string NameOf(const JsonView& object);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_JSON_VIEW_H_
