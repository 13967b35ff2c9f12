// SPDX-License-Identifier: Apache-2.0
//
// Reads members of a JSON document that may be damaged or hostile. Accessors return kDataLoss for a member that is
// missing or of the wrong type, and never throw.
#ifndef FSDP_CHECKPOINT_SOURCE_JSON_DOCUMENT_H_
#define FSDP_CHECKPOINT_SOURCE_JSON_DOCUMENT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// An object; kDataLoss for anything else, for a member named twice, for an integer beyond 64 bits (named with its
// member), and for more than kMaxJsonDepth levels.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text);

// Member `name` of `object`. Integers are from 0 to 2^63 - 1. Pointers live as long as `object`.
absl::StatusOr<int64_t> IntegerMember(const nlohmann::json& object, const char* name);
absl::StatusOr<std::string> StringMember(const nlohmann::json& object, const char* name);
absl::StatusOr<const nlohmann::json*> ArrayMember(const nlohmann::json& object, const char* name);
absl::StatusOr<std::vector<int64_t>> IntegerArrayMember(const nlohmann::json& object, const char* name);
absl::StatusOr<std::vector<std::string>> StringArrayMember(const nlohmann::json& object, const char* name);

// The members of `object` that are not among `known`, as text to append to other members: ", \"a\": 1"; may be empty. A
// later minor version may have written them; keeping them lets repair rewrite a manifest without loss.
std::string UnknownMembers(const nlohmann::json& object, const std::vector<std::string>& known);

// Member "name" in quotes, for a message; an empty name in quotes without one.
std::string NameOf(const nlohmann::json& object);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_JSON_DOCUMENT_H_
