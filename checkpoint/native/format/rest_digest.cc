// SPDX-License-Identifier: Apache-2.0
//
// The bytes outside of payload have one digest, in file order, but are read in parallel. Hashing is sequential, so
// parts that come early wait in memory, up to kMaxEarlyBytes; then the threads that bring more wait instead.
#include "fsdp/checkpoint/native/format/rest_digest.h"

#include <utility>

namespace fsdp {
namespace {

constexpr int64_t kMaxEarlyBytes = int64_t{32} << 20;

}  // namespace

bool RestDigest::Add(int64_t part, absl::StatusOr<absl::Span<const std::byte>> bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!bytes.ok()) {
    if (failed_ < 0 || part < failed_) {
      failed_ = part;
      error_ = bytes.status();
    }
    bytes = absl::Span<const std::byte>();
  }
  // This cannot deadlock: the thread holding part `next_` never waits here, since threads take parts in order.
  appended_.wait(lock, [&] { return part == next_ || early_bytes_ < kMaxEarlyBytes || bytes->empty(); });
  if (part != next_) {
    early_bytes_ += static_cast<int64_t>(bytes->size());
    early_.emplace(part, std::vector<std::byte>(bytes->begin(), bytes->end()));
    return false;
  }
  Append(*bytes);
  for (auto early = early_.begin(); early != early_.end() && early->first == next_; early = early_.erase(early)) {
    early_bytes_ -= static_cast<int64_t>(early->second.size());
    Append(early->second);
  }
  appended_.notify_all();
  return next_ == parts_;
}

void RestDigest::Append(absl::Span<const std::byte> bytes) {
  digest_.Update(bytes);
  ++next_;
}

absl::StatusOr<Digest> RestDigest::Finish() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!error_.ok()) return error_;
  return digest_.Finish();
}

}  // namespace fsdp
