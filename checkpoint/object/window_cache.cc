// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/window_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status WindowCache::Read(const std::string& key, int64_t nbytes, int64_t offset, absl::Span<std::byte> out) {
  while (!out.empty()) {
    const int64_t begin = offset / kWindowBytes * kWindowBytes;
    const std::shared_ptr<Window> window = Find(key, {begin, std::min(kWindowBytes, nbytes - begin)});
    FSDP_RETURN_IF_ERROR(Fill(*window));
    const int64_t count = std::min<int64_t>(window->range.end() - offset, std::ssize(out));
    std::memcpy(out.data(), window->bytes.data() + (offset - begin), count);
    out.remove_prefix(count);
    offset += count;
  }
  return absl::OkStatus();
}

std::shared_ptr<WindowCache::Window> WindowCache::Find(const std::string& key, const ByteRange& range) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(windows_.begin(), windows_.end(), [&](const std::shared_ptr<Window>& window) {
    return window->range == range && window->key == key;
  });
  if (found != windows_.end()) {
    windows_.splice(windows_.begin(), windows_, found);
    return windows_.front();
  }
  auto window = std::make_shared<Window>();
  window->key = key;
  window->range = range;
  windows_.push_front(window);
  // A thread that still reads from it holds a reference.
  if (windows_.size() > kWindows) windows_.pop_back();
  return window;
}

absl::Status WindowCache::Fill(Window& window) {
  const std::lock_guard<std::mutex> lock(window.mutex);
  if (window.is_read) return absl::OkStatus();
  window.bytes.resize(window.range.nbytes);
  FSDP_RETURN_IF_ERROR(GetBytes(
      store_, window.key, window.range.offset,
      absl::MakeSpan(reinterpret_cast<std::byte*>(window.bytes.data()), static_cast<size_t>(window.range.nbytes))));
  window.is_read = true;
  return absl::OkStatus();
}

absl::Status GetBytes(ObjectStore& store, const std::string& key, int64_t offset, absl::Span<std::byte> out) {
  const auto wanted = static_cast<int64_t>(out.size());
  const absl::Status got = store.Get(key, {offset, wanted}, [&](absl::Span<const std::byte> piece) {
    if (piece.size() > out.size()) {
      return absl::DataLossError(absl::StrCat("the store sends more than the ", wanted, " bytes that were asked for"));
    }
    std::memcpy(out.data(), piece.data(), piece.size());
    out.remove_prefix(piece.size());
    return absl::OkStatus();
  });
  FSDP_RETURN_IF_ERROR(got);
  if (out.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(store.UrlOf(key), ": the store sends ", wanted - std::ssize(out), " bytes of ", wanted));
}

}  // namespace fsdp
