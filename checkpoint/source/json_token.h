// SPDX-License-Identifier: Apache-2.0
//
// The strings and numbers of JSON, checked and read in place: a token is a view of the text, so a text of one long
// string costs no copy of it. Pure.
#ifndef FSDP_CHECKPOINT_SOURCE_JSON_TOKEN_H_
#define FSDP_CHECKPOINT_SOURCE_JSON_TOKEN_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// kDataLoss that names byte `at` of the text, counted from 1, and the reason.
absl::Status NotJson(size_t at, std::string_view why);

// The string, with its quotes, that begins with the quote at `at`. NotJson for a control character, an escape that JSON
// does not define, half a surrogate pair, bytes that are not UTF-8, and a text that ends first.
absl::StatusOr<std::string_view> ScanJsonString(std::string_view text, size_t at);

// The characters that a token of ScanJsonString spells.
std::string UnescapeJsonString(std::string_view token);

// True for text that needs no escape: between quotes it is a string of JSON, as almost every name of a tensor is. Only
// ASCII, so that a writer for which other characters matter treats them itself.
bool IsPlainJson(std::string_view text);

// The number that begins at `at`. NotJson for anything else, such as a sign without a digit.
absl::StatusOr<std::string_view> ScanJsonNumber(std::string_view text, size_t at);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_JSON_TOKEN_H_
