// SPDX-License-Identifier: Apache-2.0
//
// StateCollector: whole tensors joined from every rank's shards of a state dict, so that tests compare states of any
// form and any world size bit for bit. Add is thread-safe.
#ifndef FSDP_FSDP_STATE_STATE_COLLECTOR_TESTUTIL_H_
#define FSDP_FSDP_STATE_STATE_COLLECTOR_TESTUTIL_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/tensor/state_dict.h"

namespace fsdp {

class StateCollector {
 public:
  // Copies the shards of one rank's state dict.
  void Add(const StateDict& state);

  // Test failures unless every tensor is held exactly once, not counting replicas.
  void ExpectCovered() const;

  size_t size() const { return wholes_.size(); }

  // The elements of one tensor, by key; empty if the key is unknown.
  std::string BytesOf(const StateKey& key) const;

  // Test failures, by name, unless both have the same tensors in every bit.
  friend void ExpectSame(const StateCollector& a, const StateCollector& b);

 private:
  struct Whole {
    std::string bytes;
    int64_t numel = 0;
    std::vector<Interval> held;
  };
  std::mutex mutex_;
  std::map<std::string, Whole> wholes_;  // guarded by mutex_ while ranks run
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_STATE_COLLECTOR_TESTUTIL_H_
