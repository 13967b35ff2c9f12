// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_chunks.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace fsdp {
namespace {

// Deques take a seventeenth more than their contents, as in pickle_builder.h.
template <typename T>
int64_t DequeBytes(const std::deque<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T)) * 17 / 16;
}

// R of "__R_i.distcp", -1 for any other name. Numbers that no run reaches are not ranks.
int RankOf(std::string_view name) {
  constexpr std::string_view kPrefix = "__";
  constexpr std::string_view kSuffix = ".distcp";
  constexpr size_t kMaxDigits = 5;
  if (name.substr(0, kPrefix.size()) != kPrefix) return -1;
  name.remove_prefix(kPrefix.size());
  const size_t end = name.find('_');
  if (end == name.npos || end > kMaxDigits || name.size() < kSuffix.size() ||
      name.substr(name.size() - kSuffix.size()) != kSuffix) {
    return -1;
  }
  int rank = -1;
  return absl::SimpleAtoi(absl::string_view(name.data(), end), &rank) ? rank : -1;
}

}  // namespace

int DcpWorldSize(const std::deque<std::string>& names) {
  int last = 0;
  for (const std::string& name : names) last = std::max(last, RankOf(name));
  return last + 1;
}

size_t DcpSizes::Hash::operator()(absl::Span<const int64_t> sizes) const {
  return absl::Hash<absl::Span<const int64_t>>()(sizes);
}

// Appends the list before it inserts the number, because numbers_ hashes through values_.
uint32_t DcpSizes::Add(absl::Span<const int64_t> sizes, int64_t note) {
  if (const auto at = numbers_.find(sizes); at != numbers_.end()) return *at;
  const auto number = static_cast<uint32_t>(values_->size());
  values_->push_back(note << 8 | static_cast<int64_t>(sizes.size()));
  values_->insert(values_->end(), sizes.begin(), sizes.end());
  numbers_.insert(number);
  return number;
}

// Half as much again, because a growing table briefly exists twice.
int64_t DcpSizes::memory() const {
  const size_t bytes = values_->capacity() * sizeof(int64_t) + numbers_.capacity() * (sizeof(uint32_t) + 1);
  return static_cast<int64_t>(bytes) * 3 / 2;
}

uint32_t DcpSlices::Add(std::string_view file, int64_t offset, int64_t nbytes) {
  auto at = numbers_.find(file);
  if (at == numbers_.end()) {
    file_bytes_ += static_cast<int64_t>(file.size() + sizeof(std::string) + 16);
    const auto number = static_cast<uint32_t>(files_.size());
    // The map's key is a view of the stored string, which a deque never moves.
    at = numbers_.try_emplace(files_.emplace_back(file), number).first;
  }
  slices_.push_back({offset, nbytes, at->second});
  return static_cast<uint32_t>(slices_.size() - 1);
}

DcpSlice DcpSlices::operator[](uint32_t number) const {
  const Slice& slice = slices_[number];
  return {files_[slice.file], slice.offset, slice.nbytes};
}

int64_t DcpSlices::memory() const {
  constexpr int64_t kEntryBytes = sizeof(std::pair<std::string_view, uint32_t>) + 1;
  return DequeBytes(slices_) + file_bytes_ + static_cast<int64_t>(numbers_.capacity()) * kEntryBytes * 3 / 2;
}

void DcpChunks::Add(const DcpChunk& chunk) {
  Add(sizes_.Add(chunk.box.start), sizes_.Add(chunk.box.count),
      slices_.Add(chunk.slice.file, chunk.slice.offset, chunk.slice.nbytes));
}

DcpChunk DcpChunks::operator[](size_t i) const {
  const absl::Span<const int64_t> from = start(i);
  const absl::Span<const int64_t> numel = count(i);
  return {{{from.begin(), from.end()}, {numel.begin(), numel.end()}}, slice(i)};
}

}  // namespace fsdp
