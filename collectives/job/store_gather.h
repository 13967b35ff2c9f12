// SPDX-License-Identifier: Apache-2.0
//
// StoreGather: collects one blob of each rank in the server of a store, until it can answer all ranks. On the wire, the
// blobs are a text of u32 length (little-endian) and bytes for each rank, in the order of ranks.
#ifndef FSDP_COLLECTIVES_JOB_STORE_GATHER_H_
#define FSDP_COLLECTIVES_JOB_STORE_GATHER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// The longest text of all blobs: 64 MiB, 64 KiB for each of 1024 ranks.
constexpr size_t kMaxStoreGatherBytes = 64 << 20;

class StoreGather {
 public:
  explicit StoreGather(int world_size) : blobs_(static_cast<size_t>(world_size)) {}

  // Adds a rank's blob, or replaces its earlier one.
  void Add(int rank, std::string blob);

  bool is_complete() const { return missing_ == 0; }

  // In ascending order.
  std::vector<int> MissingRanks() const;

  // The length of Encode's text for the blobs so far.
  size_t encoded_bytes() const { return encoded_bytes_; }

  // REQUIRES: is_complete().
  std::string Encode() const;

  // The blobs of `world_size` ranks in a text of Encode; kDataLoss for any other text.
  static absl::StatusOr<std::vector<std::string>> Decode(std::string_view text, int world_size);

 private:
  std::vector<std::optional<std::string>> blobs_;  // by rank
  size_t missing_ = blobs_.size();
  size_t encoded_bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_GATHER_H_
