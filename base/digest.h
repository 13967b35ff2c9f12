// SPDX-License-Identifier: Apache-2.0
//
// Digest: XXH3-128 of bytes, the checksum of all bytes that go to disk. It detects accidental damage. It does not
// protect against an attacker, who can construct collisions. The text form is the one of XXH128_canonical_t: 32
// lower-case hexadecimal digits, high half first, as `xxh128sum` prints it.
#ifndef FSDP_BASE_DIGEST_H_
#define FSDP_BASE_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

// A value; two digests are equal if their bytes are, except with a probability of about 2^-128.
struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;

  // 32 lower-case digits.
  std::string ToHex() const;

  bool operator==(const Digest& other) const { return high == other.high && low == other.low; }
  bool operator!=(const Digest& other) const { return !(*this == other); }
};

// The inverse of ToHex; kInvalidArgument for anything but 32 lower-case digits.
absl::StatusOr<Digest> ParseDigest(std::string_view hex);

// The digest of bytes that are in memory as a whole. O(n) on the calling thread; thread-safe.
Digest DigestOf(absl::Span<const std::byte> bytes);
Digest DigestOf(std::string_view bytes);

// The digest of bytes that arrive in pieces. It does not depend on the sizes of the pieces. Not thread-safe.
class DigestBuilder {
 public:
  // Starts with no bytes. A builder that was moved from may only be assigned to or destroyed.
  DigestBuilder();
  DigestBuilder(DigestBuilder&&) noexcept;
  DigestBuilder& operator=(DigestBuilder&&) noexcept;
  ~DigestBuilder();

  // Appends bytes; O(n). An empty span may have a null pointer.
  void Update(absl::Span<const std::byte> bytes);
  void Update(std::string_view bytes);

  // The digest of all bytes since construction or Reset. More bytes may follow. O(1) in the number of bytes.
  Digest Finish() const;

  // Forgets all bytes.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Adds `nbytes` bytes of `source` to `builder` and copies them to `destination` with StreamingCopy, tile by tile, so
// that each byte is read from memory only once. Digesting after the copy would read it twice. The two must not overlap.
// No alignment is needed.
void CopyAndDigest(void* destination, const void* source, size_t nbytes, DigestBuilder& builder);

}  // namespace fsdp

#endif  // FSDP_BASE_DIGEST_H_
