// SPDX-License-Identifier: Apache-2.0
//
// WindowCache: the last few windows of objects that were read. A model has thousands of tensors of a few kilobytes,
// which are neighbours in their file; with a request for each, most of the time is the store's latency.
#ifndef FSDP_CHECKPOINT_OBJECT_WINDOW_CACHE_H_
#define FSDP_CHECKPOINT_OBJECT_WINDOW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/storage/byte_range.h"

namespace fsdp {

// Thread-safe: threads that want one window wait for one request, and others do not wait.
class WindowCache final {
 public:
  static constexpr int64_t kWindowBytes = int64_t{512} << 10;
  static constexpr size_t kWindows = 32;

  // `store` must outlive it.
  explicit WindowCache(ObjectStore& store) : store_(store) {}

  // Fills `out` with the bytes from `offset` on of object `key`, which has `nbytes` bytes and does not change. The
  // range must be inside. Errors as ObjectStore::Get; a window that could not be read is asked for again.
  absl::Status Read(const std::string& key, int64_t nbytes, int64_t offset, absl::Span<std::byte> out);

 private:
  struct Window {
    std::string key;
    ByteRange range;
    std::mutex mutex;
    bool is_read = false;  // guarded by mutex
    std::string bytes;     // guarded by mutex until is_read; then constant
  };

  // The window of that place, the most recent one from now on; not read yet if it is new.
  std::shared_ptr<Window> Find(const std::string& key, const ByteRange& range);

  // Reads the window unless it has been.
  absl::Status Fill(Window& window);

  ObjectStore& store_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Window>> windows_;  // guarded by mutex_; the most recent first, at most kWindows
};

// Fills `out` with bytes of an object; the request of ObjectStore::Get.
absl::Status GetBytes(ObjectStore& store, const std::string& key, int64_t offset, absl::Span<std::byte> out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_WINDOW_CACHE_H_
