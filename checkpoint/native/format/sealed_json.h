// SPDX-License-Identifier: Apache-2.0
//
// A sealed JSON text: an object whose last member is the digest of all bytes before that digest. The text after the 32
// digits is exactly `"`, `}` and a newline, so the seal is found and compared without trusting any byte of the text:
//
//   {
//     "step": 100,
//     "digest": "1f2e..."}
//
// Manifests and records of rank files are such texts. Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_SEALED_JSON_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_SEALED_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

// Ends `members`, an object without its closing brace and without a comma after its last member. The result has
// `nbytes` bytes, with blanks before the digest; with `nbytes` 0, its natural length. Precondition: it fits.
std::string Seal(std::string members, int64_t nbytes = 0);

// The minimum number of bytes that Seal adds to `members`.
int64_t SealBytes();

// OK when the seal is whole and has the digest of the text; else kDataLoss, with both digests.
absl::Status CheckSeal(std::string_view text);

// The digest of a text whose seal was checked, as 32 digits.
std::string_view SealOf(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_SEALED_JSON_H_
