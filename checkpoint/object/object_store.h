// SPDX-License-Identifier: Apache-2.0
//
// ObjectStore: one bucket of an object store as an interface: S3's (s3_store.h), or memory with faults for tests
// (memory_object_store.h). An object appears whole or not at all, under a key such as "run/step-00000100/manifest.json"
// that has no folders, only slashes. There is no rename: what commits here is PutIfAbsent. This is no FileSystem:
// links, exchanges and locks have no meaning in a bucket.
//
// All functions block. Errors name bucket and key, what the store answered (HTTP status and code) and what to do:
// kNotFound for a key or bucket that is not there, kPermissionDenied and kUnauthenticated for credentials, kUnavailable
// once retries are used up, kDataLoss for a reply that cannot be believed. Thread-safe.
#ifndef FSDP_CHECKPOINT_OBJECT_OBJECT_STORE_H_
#define FSDP_CHECKPOINT_OBJECT_OBJECT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The bytes of an object to be put, read as they are sent: a large file is never in memory. `read` fills all of `out`
// from byte `offset` on, may be called from several threads, and again for bytes that it has given, when a request is
// retried.
struct ObjectBody {
  int64_t nbytes = 0;
  std::function<absl::Status(int64_t offset, absl::Span<std::byte> out)> read;
};

// The first `nbytes` bytes of `file`, which must outlive the body.
ObjectBody FileBody(const File& file, int64_t nbytes);

// `text`, which must outlive the body.
ObjectBody TextBody(absl::string_view text);

struct ObjectEntry {
  std::string key;
  int64_t nbytes = 0;

  bool operator==(const ObjectEntry& other) const { return key == other.key && nbytes == other.nbytes; }
};

// What begins with a prefix, in the order of keys.
struct ObjectListing {
  std::vector<ObjectEntry> objects;

  // With `one_level` the keys with a slash behind the prefix are left out, and these are they, up to and with that
  // slash, each once: "run/step-00000100/".
  std::vector<std::string> folders;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Makes or replaces the object. One that is long is sent in parts, which no reader sees before the last.
  virtual absl::Status Put(const std::string& key, const ObjectBody& body) = 0;

  // Makes the object unless there is one: kAlreadyExists then. Also after a retry of a request whose answer was lost:
  // the caller compares what is there with what it put.
  virtual absl::Status PutIfAbsent(const std::string& key, absl::string_view bytes) = 0;

  // Gives bytes `range` of the object to `sink` in order, in pieces of any size. kOutOfRange when the object ends
  // before; an error of `sink` ends it and is returned.
  virtual absl::Status Get(const std::string& key, const ByteRange& range,
                           absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) = 0;

  // The number of bytes of the object.
  virtual absl::StatusOr<int64_t> Size(const std::string& key) = 0;

  // The objects whose keys begin with `prefix`; kResourceExhausted for more than kMaxListed.
  virtual absl::StatusOr<ObjectListing> List(const std::string& prefix, bool one_level) = 0;

  // OK also when there is no such object.
  virtual absl::Status Delete(const std::string& key) = 0;

  // Ends the puts in parts, of keys that begin with `prefix`, that a process has begun and not ended: their parts cost
  // money and no listing shows them. Those of a running process fail.
  virtual absl::Status AbortUploads(const std::string& prefix) = 0;

  // "s3://bucket/key", for messages.
  virtual std::string UrlOf(const std::string& key) const = 0;
};

// The most that one List returns: keys of at most 1 KiB each.
inline constexpr int64_t kMaxListed = 1'000'000;

// All bytes of an object; kInvalidArgument for one of more than `max_bytes`.
absl::StatusOr<std::string> GetObject(ObjectStore& store, const std::string& key, int64_t max_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_OBJECT_STORE_H_
