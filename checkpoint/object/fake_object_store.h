// SPDX-License-Identifier: Apache-2.0
//
// FakeObjectStore: for tests: a bucket in memory, with S3's guarantees (an object appears complete, a put in parts with
// its last request, reads see completed writes) and with faults. Each request to a real store is one request here: a
// test counts the requests of a run without faults, and then repeats the run with a fault at each of them.
#ifndef FSDP_CHECKPOINT_OBJECT_FAKE_OBJECT_STORE_H_
#define FSDP_CHECKPOINT_OBJECT_FAKE_OBJECT_STORE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {

class FakeObjectStore final : public ObjectStore {
 public:
  enum class Fault {
    kError,      // this request fails, and does nothing
    kLostReply,  // this request fails after doing its work
    kKill,       // this request and all later ones fail and do nothing: the process is dead
    kKillAfter,  // this request does its work, and all later ones fail
  };

  // Objects longer than `part_bytes` are put in parts.
  explicit FakeObjectStore(int64_t part_bytes = 1000) : part_bytes_(part_bytes) {}

  // The `request`-th request from now, counted from 1, has the fault.
  void InjectFault(Fault fault, int64_t request);

  // Simulates a new process: clears the fault and counts requests from 0 again.
  void Restart();

  // Requests since the last Restart.
  int64_t requests() const;

  absl::Status Put(const std::string& key, const ObjectBody& body) override;
  absl::Status PutIfAbsent(const std::string& key, absl::string_view bytes) override;
  absl::Status Get(const std::string& key, const ByteRange& range,
                   absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) override;
  absl::StatusOr<int64_t> Size(const std::string& key) override;
  absl::StatusOr<ObjectListing> List(const std::string& prefix, bool one_level) override;
  absl::Status Delete(const std::string& key) override;
  absl::Status AbortUploads(const std::string& prefix) override;
  std::string UrlOf(const std::string& key) const override;

  // The requests of a put in parts, for a server in front of this store.
  absl::StatusOr<std::string> CreateUpload(const std::string& key);
  absl::Status PutPart(const std::string& id, int part, std::string bytes);
  absl::Status CompleteUpload(const std::string& id);
  absl::Status AbortUpload(const std::string& id);

  // For tests to inspect and damage objects; not counted as requests.
  std::map<std::string, std::string> objects() const;
  void SetObject(const std::string& key, std::string bytes);
  std::map<std::string, std::string> uploads() const;  // id and key of each unfinished put in parts

 private:
  struct Upload {
    std::string key;
    std::map<int, std::string> parts;
  };

  // Called once for each request, before its work, with mutex_ held: an error ends the request. `lost` is the error to
  // return after the work.
  absl::Status Begin(absl::Status& lost);

  const int64_t part_bytes_;

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::map<std::string, std::string> objects_;
  std::map<std::string, Upload> uploads_;
  int64_t requests_ = 0;
  int64_t faulty_request_ = 0;  // 0: no fault
  Fault fault_ = Fault::kError;
  int next_upload_ = 1;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_FAKE_OBJECT_STORE_H_
