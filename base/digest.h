// SPDX-License-Identifier: Apache-2.0
//
// Digest: XXH3-128 of bytes, the checksum of everything that goes to disk. It finds damage, not malice. The text form
// is XXH128_canonical's: 32 lower-case hexadecimal digits, high half first, as `xxh128sum` prints it.
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

Digest DigestOf(absl::Span<const std::byte> bytes);
Digest DigestOf(std::string_view bytes);

// The digest of bytes that arrive in pieces; how they are cut does not matter. Not thread-safe.
class DigestBuilder {
 public:
  DigestBuilder();
  DigestBuilder(DigestBuilder&&) noexcept;
  DigestBuilder& operator=(DigestBuilder&&) noexcept;
  ~DigestBuilder();

  void Update(absl::Span<const std::byte> bytes);
  void Update(std::string_view bytes);

  // Of all bytes since construction or Reset; more may follow.
  Digest Finish() const;

  // Back to no bytes.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Adds `nbytes` bytes of `source` to `builder` and copies them to `destination`, tile by tile, so that each byte is
// copied while it is in the cache, and past the caches (streaming_copy.h): to digest the copy would read it again. They
// must not overlap.
void CopyAndDigest(void* destination, const void* source, size_t nbytes, DigestBuilder& builder);

}  // namespace fsdp

#endif  // FSDP_BASE_DIGEST_H_
