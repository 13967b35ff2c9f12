// SPDX-License-Identifier: Apache-2.0
//
// VisitJson: reads JSON that may be damaged or hostile as a sequence of events. It is stricter than most parsers: a
// duplicate name in one object is an error (they keep the last), nesting is bounded, NUL bytes and invalid UTF-8 are
// errors. It reads the text in place and builds no document, so it needs memory only for names, which has a limit
// (decode_budget.h). Events come in the order of the text, on the calling thread.
#ifndef FSDP_CHECKPOINT_SOURCE_JSON_EVENTS_H_
#define FSDP_CHECKPOINT_SOURCE_JSON_EVENTS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/source/decode_budget.h"

namespace fsdp {

// The deepest nesting of objects and arrays that is accepted.
inline constexpr int kMaxJsonDepth = 64;

// The place of a value: the names that lead to it, outermost first, and the number of open arrays inside the innermost
// object.
struct JsonPlace {
  absl::Span<const std::string> names;
  int arrays = 0;
};

// An error returned by any of these ends the visit and is returned by VisitJson.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;

  virtual absl::Status StartObject(const JsonPlace& place) = 0;
  virtual absl::Status EndObject(const JsonPlace& place) = 0;
  virtual absl::Status StartArray(const JsonPlace& place) = 0;  // place.arrays does not count this one yet
  virtual absl::Status EndArray(const JsonPlace&) { return absl::OkStatus(); }  // place.arrays does not count it
  virtual absl::Status String(const JsonPlace& place, std::string_view value) = 0;
  virtual absl::Status Unsigned(const JsonPlace& place, uint64_t value) = 0;

  // null, true, a negative or fractional number: `what` names it for a message.
  virtual absl::Status Other(const JsonPlace& place, std::string_view what, const nlohmann::json& value) = 0;

  // An integer beyond 64 bits, as it is in the text. By default it is passed to Other, with the value null.
  virtual absl::Status LargeInteger(const JsonPlace& place, std::string_view literal);
};

// Accepts every value and keeps none: VisitJson then only checks the text, whose depth is bounded.
class AnyJson : public JsonVisitor {
 public:
  absl::Status StartObject(const JsonPlace&) override { return absl::OkStatus(); }
  absl::Status EndObject(const JsonPlace&) override { return absl::OkStatus(); }
  absl::Status StartArray(const JsonPlace&) override { return absl::OkStatus(); }
  absl::Status String(const JsonPlace&, std::string_view) override { return absl::OkStatus(); }
  absl::Status Unsigned(const JsonPlace&, uint64_t) override { return absl::OkStatus(); }
  absl::Status Other(const JsonPlace&, std::string_view, const nlohmann::json&) override { return absl::OkStatus(); }
};

// kDataLoss when `text` is not one JSON value, and the message names the byte; or when its names take more memory than
// `budget` has. The names of an object take it until the object ends.
absl::Status VisitJson(std::string_view text, JsonVisitor& visitor, DecodeBudget& budget);
// With a budget of its own.
absl::Status VisitJson(std::string_view text, JsonVisitor& visitor);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_JSON_EVENTS_H_
