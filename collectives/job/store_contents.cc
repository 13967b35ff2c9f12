// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/store_contents.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// Bounds the memory that clients can make the server hold.
constexpr size_t kMaxTotalBytes = 256 << 20;

// The size of a gather without its blobs.
size_t GatherBytes(const std::string& key, int world_size) {
  return key.size() + static_cast<size_t>(world_size) * sizeof(std::optional<std::string>);
}

}  // namespace

absl::Status StoreContents::Set(const std::string& key, const std::string& value) {
  const auto [it, is_new] = values_.try_emplace(key);
  const size_t before = is_new ? 0 : key.size() + it->second.size();
  const size_t after = key.size() + value.size();
  // `before` is part of nbytes_, so the difference does not wrap.
  if (nbytes_ - before + after > kMaxTotalBytes) {
    if (is_new) values_.erase(it);
    return absl::ResourceExhaustedError(absl::StrCat("full: ", nbytes_, " bytes"));
  }
  it->second = value;
  nbytes_ += after - before;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StoreContents::Add(const std::string& key, int64_t number) {
  int64_t before = 0;
  if (const auto it = values_.find(key); it != values_.end() && !absl::SimpleAtoi(it->second, &before)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not a number"));
  }
  // Unsigned, because the sum may wrap, and signed overflow is undefined.
  const auto sum = static_cast<int64_t>(static_cast<uint64_t>(before) + static_cast<uint64_t>(number));
  FSDP_RETURN_IF_ERROR(Set(key, absl::StrCat(sum)));
  return sum;
}

StoreMessage StoreContents::Value(const std::string& key) const {
  const auto value = values_.find(key);
  return value == values_.end() ? nullptr : MakeStoreMessage({.value = value->second});
}

absl::Status StoreContents::AddBlob(const std::string& gather, int rank, const std::string& blob) {
  const auto [it, is_new] = gathers_.try_emplace(gather, Gather{.blobs = StoreGather(world_size_)});
  StoreGather& blobs = it->second.blobs;
  const size_t places = is_new ? GatherBytes(it->first, world_size_) : 0;
  const size_t added = sizeof(uint32_t) + blob.size();
  // A blob that replaces an earlier one of the same rank is counted in full here. That refuses a little too early, and
  // never too late.
  if (blobs.encoded_bytes() + added > kMaxStoreGatherBytes || nbytes_ + places + added > kMaxTotalBytes) {
    if (is_new) gathers_.erase(it);
    return absl::ResourceExhaustedError(absl::StrCat("full: ", nbytes_, " bytes, and ", added, " of rank ", rank));
  }
  const size_t before = blobs.encoded_bytes();
  blobs.Add(rank, blob);
  nbytes_ = nbytes_ + places + blobs.encoded_bytes() - before;
  return absl::OkStatus();
}

StoreMessage StoreContents::Blobs(const std::string& gather) {
  Gather& found = gathers_.at(gather);
  // Encoded once; all waiting connections share the message.
  if (found.reply == nullptr && found.blobs.is_complete()) {
    found.reply = MakeStoreMessage({.value = found.blobs.Encode()});
  }
  return found.reply;
}

std::vector<int> StoreContents::MissingRanks(const std::string& gather) const {
  return gathers_.at(gather).blobs.MissingRanks();
}

void StoreContents::ForgetCompleteGathers() {
  for (auto next = gathers_.begin(); next != gathers_.end();) {
    const auto gather = next++;
    if (!gather->second.blobs.is_complete()) continue;
    nbytes_ -= GatherBytes(gather->first, world_size_) + gather->second.blobs.encoded_bytes();
    gathers_.erase(gather);
  }
}

}  // namespace fsdp
