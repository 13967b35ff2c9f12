// SPDX-License-Identifier: Apache-2.0
//
// StoreContents: the data that a StoreServer holds for its clients: keys with their values, and gathers, to which each
// rank contributes a blob. The total is bounded. Used by one thread.
#ifndef FSDP_COLLECTIVES_JOB_STORE_CONTENTS_H_
#define FSDP_COLLECTIVES_JOB_STORE_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/collectives/job/store_connection.h"
#include "fsdp/collectives/job/store_gather.h"

namespace fsdp {

class StoreContents {
 public:
  explicit StoreContents(int world_size) : world_size_(world_size) {}

  // kResourceExhausted beyond 256 MiB of keys, values and gathers.
  absl::Status Set(const std::string& key, const std::string& value);

  // Adds `number` to the key's value, 0 if it is not set, and returns the sum, which wraps. kInvalidArgument if the
  // value is not a number; the errors of Set.
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t number);

  // The message with the key's value; null if it is not set.
  StoreMessage Value(const std::string& key) const;

  // Adds a rank's blob; the first blob begins the gather. kResourceExhausted beyond the limit of a gather, or of the
  // total.
  absl::Status AddBlob(const std::string& gather, int rank, const std::string& blob);

  // The message with all blobs; null while some are missing. The gather must exist.
  StoreMessage Blobs(const std::string& gather);
  std::vector<int> MissingRanks(const std::string& gather) const;

  // Call after the waiting ranks were answered: a gather with its last blob answers all of them.
  void ForgetCompleteGathers();

 private:
  struct Gather {
    StoreGather blobs;
    StoreMessage reply = nullptr;  // made when it is complete
  };

  const int world_size_;
  std::map<std::string, std::string> values_;
  std::map<std::string, Gather> gathers_;
  size_t nbytes_ = 0;  // of all keys, values and gathers
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_CONTENTS_H_
