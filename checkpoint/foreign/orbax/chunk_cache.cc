// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/chunk_cache.h"

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<std::shared_ptr<const ChunkCache::Bytes>> ChunkCache::Get(
    const ChunkNumber& number, const std::function<absl::StatusOr<Bytes>()>& decode) {
  // The slot is found, or made, under the lock of the cache, and decoded under its own: other chunks can be decoded
  // meanwhile, and a second reader of this chunk waits for the first instead of decoding it again.
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Slot>& at = slots_[number];
    if (at == nullptr) {
      at = std::make_shared<Slot>();
      at->order = order_.insert(order_.end(), number);
    } else {
      order_.splice(order_.end(), order_, at->order);
    }
    slot = at;
  }
  const std::lock_guard<std::mutex> decoding(slot->mutex);
  if (slot->bytes != nullptr) return slot->bytes;
  absl::StatusOr<Bytes> bytes = decode();
  // The next reader tries again: the error may be of this machine and not of the file.
  if (!bytes.ok()) {
    Drop(number, slot);
    return bytes.status();
  }
  slot->bytes = std::make_shared<const Bytes>(*std::move(bytes));
  const std::lock_guard<std::mutex> lock(mutex_);
  // It may have been dropped while it was decoded.
  const auto at = slots_.find(number);
  if (at == slots_.end() || at->second != slot) return slot->bytes;
  slot->nbytes = static_cast<int64_t>(slot->bytes->size());
  nbytes_ += slot->nbytes;
  while (nbytes_ > most_bytes_ && order_.front() != number) {
    const auto oldest = slots_.find(order_.front());
    nbytes_ -= oldest->second->nbytes;
    slots_.erase(oldest);
    order_.pop_front();
  }
  return slot->bytes;
}

void ChunkCache::Drop(const ChunkNumber& number, const std::shared_ptr<Slot>& slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = slots_.find(number);
  if (at == slots_.end() || at->second != slot) return;
  order_.erase(slot->order);
  slots_.erase(at);
}

}  // namespace fsdp
