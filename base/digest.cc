// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/check.h"
#include "fsdp/base/streaming_copy.h"
#include "fsdp/base/xxh3.h"

namespace fsdp {
namespace {

// Half of a small L2 cache: the source tile stays in it between the digest and the copy.
constexpr size_t kTileBytes = 256 * 1024;

// The value of a lower-case hexadecimal digit, or -1.
int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string Digest::ToHex() const { return absl::StrFormat("%016x%016x", high, low); }

absl::StatusOr<Digest> ParseDigest(std::string_view hex) {
  const auto malformed = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("digest \"", std::string(hex), "\" is not 32 lower-case hexadecimal digits"));
  };
  if (hex.size() != 32) return malformed();
  uint64_t halves[2] = {0, 0};
  // The high half comes first, as in ToHex.
  for (size_t i = 0; i < hex.size(); ++i) {
    const int value = HexValue(hex[i]);
    if (value < 0) return malformed();
    halves[i / 16] = halves[i / 16] << 4 | static_cast<uint64_t>(value);
  }
  return Digest{halves[0], halves[1]};
}

Digest DigestOf(absl::Span<const std::byte> bytes) { return BestXxh3().of(bytes.data(), bytes.size()); }

Digest DigestOf(std::string_view bytes) { return BestXxh3().of(bytes.data(), bytes.size()); }

// XXH3's state needs 64-byte alignment, which only its own allocator guarantees on all platforms.
struct DigestBuilder::State {
  State() : xxh(XXH3_createState()) { Check(xxh != nullptr, "out of memory for an XXH3 state"); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* xxh;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) { Reset(); }
DigestBuilder::DigestBuilder(DigestBuilder&&) noexcept = default;
DigestBuilder& DigestBuilder::operator=(DigestBuilder&&) noexcept = default;
DigestBuilder::~DigestBuilder() = default;

void DigestBuilder::Update(absl::Span<const std::byte> bytes) {
  // XXH3 refuses a null pointer, and an empty span may have one.
  if (bytes.empty()) return;
  Check(BestXxh3().update(state_->xxh, bytes.data(), bytes.size()), "XXH3 update failed");
}

void DigestBuilder::Update(std::string_view bytes) {
  Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

Digest DigestBuilder::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {hash.high64, hash.low64};
}

void DigestBuilder::Reset() { Check(XXH3_128bits_reset(state_->xxh) == XXH_OK, "XXH3 reset failed"); }

void CopyAndDigest(void* destination, const void* source, size_t nbytes, DigestBuilder& builder) {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  for (size_t done = 0; done < nbytes; done += kTileBytes) {
    // Digest first: it loads the tile into the cache, and the copy then reads it from there. The copy's stores bypass
    // the cache.
    const size_t n = std::min(kTileBytes, nbytes - done);
    builder.Update(absl::MakeConstSpan(from + done, n));
    StreamingCopy(to + done, from + done, n);
  }
}

}  // namespace fsdp
