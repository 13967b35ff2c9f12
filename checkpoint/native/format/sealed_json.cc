// SPDX-License-Identifier: Apache-2.0
//
// A fixed tail of 35 bytes, digest and `"}\n`, ends every sealed text. So the digest is found by its distance from the
// end, and blanks before it can fill a text up to a given length without changing its meaning.
#include "fsdp/checkpoint/native/format/sealed_json.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

constexpr std::string_view kMember = "\"digest\": \"";
constexpr std::string_view kTail = "\"}\n";
constexpr size_t kDigits = 32;

}  // namespace

std::string Seal(std::string members, int64_t nbytes) {
  // Blanks before the last member are insignificant in JSON and part of what the digest covers.
  members += ",\n";
  const size_t length = members.size() + kMember.size() + kDigits + kTail.size();
  if (nbytes != 0) {
    Check(length <= static_cast<size_t>(nbytes), "a sealed text is longer than its place");
    members.append(nbytes - length, ' ');
  }
  members += kMember;
  members += DigestOf(std::string_view(members)).ToHex();
  members += kTail;
  return members;
}

int64_t SealBytes() { return static_cast<int64_t>(2 + kMember.size() + kDigits + kTail.size()); }

absl::Status CheckSeal(std::string_view text) {
  if (text.size() < kMember.size() + kDigits + kTail.size()) {
    return absl::DataLossError(absl::StrCat("it has ", text.size(), " bytes and no digest at its end"));
  }
  if (text.substr(text.size() - kTail.size()) != kTail) {
    return absl::DataLossError("it does not end as a digest does, with \"}\\n");
  }
  const std::string recorded(SealOf(text));
  const std::string actual = DigestOf(text.substr(0, text.size() - kTail.size() - kDigits)).ToHex();
  if (actual != recorded) {
    return absl::DataLossError(absl::StrCat("digest ", actual, " != recorded ", Printable(recorded)));
  }
  return absl::OkStatus();
}

std::string_view SealOf(std::string_view text) { return text.substr(text.size() - kTail.size() - kDigits, kDigits); }

}  // namespace fsdp
