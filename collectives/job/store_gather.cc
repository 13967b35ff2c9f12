// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/store_gather.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {

static_assert(std::endian::native == std::endian::little);

void StoreGather::Add(int rank, std::string blob) {
  std::optional<std::string>& place = blobs_[static_cast<size_t>(rank)];
  if (place.has_value()) {
    encoded_bytes_ -= sizeof(uint32_t) + place->size();
  } else {
    --missing_;
  }
  encoded_bytes_ += sizeof(uint32_t) + blob.size();
  place = std::move(blob);
}

std::vector<int> StoreGather::MissingRanks() const {
  std::vector<int> missing;
  for (size_t r = 0; r < blobs_.size(); ++r) {
    if (!blobs_[r].has_value()) missing.push_back(static_cast<int>(r));
  }
  return missing;
}

std::string StoreGather::Encode() const {
  std::string text;
  text.reserve(encoded_bytes_);
  for (const std::optional<std::string>& blob : blobs_) {
    const uint32_t size = static_cast<uint32_t>(blob->size());
    text.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text.append(*blob);
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> StoreGather::Decode(std::string_view text, int world_size) {
  std::vector<std::string> blobs;
  const auto malformed = [&] {
    return absl::DataLossError(absl::StrCat("gathered blobs: expected ", world_size, ", one per rank, but ",
                                            text.size(), " bytes remain after ", blobs.size(), " of them"));
  };
  while (blobs.size() < static_cast<size_t>(world_size)) {
    uint32_t size = 0;
    if (text.size() < sizeof(size)) return malformed();
    std::memcpy(&size, text.data(), sizeof(size));
    if (text.size() - sizeof(size) < size) return malformed();
    blobs.emplace_back(text.substr(sizeof(size), size));
    text.remove_prefix(sizeof(size) + size);
  }
  if (!text.empty()) return malformed();
  return blobs;
}

}  // namespace fsdp
