// SPDX-License-Identifier: Apache-2.0
//
// ObjectStore: one bucket of an object store as an interface: S3's (s3_store.h), or memory with faults for tests
// (fake_object_store.h). An object appears complete or not at all, under a key such as
// "run/step-00000100/manifest.json", whose slashes do not denote folders. There is no rename: PutIfAbsent is the
// commit. It does not implement FileSystem: links, exchanges and locks have no meaning in a bucket.
//
// No part of a key between slashes is ".", ".." or empty, and none has a control character: a store or a proxy that
// reads keys as paths would act on another key. Every function refuses such a key or prefix with kInvalidArgument.
//
// All functions block. Errors name bucket and key, the answer of the store (HTTP status and code) and a remedy:
// kNotFound for a missing key or bucket, kPermissionDenied and kUnauthenticated for credentials, kUnavailable once
// retries are used up, kDataLoss for an invalid reply. Thread-safe.
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

// The bytes of an object to be put, read while they are sent, so that a large file is never in memory. `read` fills all
// of `out` from byte `offset`, may be called from several threads, and again for the same bytes when a request is
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

// The keys that begin with a prefix, in order.
struct ObjectListing {
  std::vector<ObjectEntry> objects;

  // With `one_level`: the keys that have a slash after the prefix are not in `objects`, but here, up to and including
  // that slash, each once: "run/step-00000100/".
  std::vector<std::string> folders;
};

// OK for a key that every store reads the same way (above), and for a prefix of one, which may be empty or end with a
// slash. kInvalidArgument names the key.
absl::Status CheckObjectKey(absl::string_view key);

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Makes or replaces the object. A long one is sent in parts, which readers see only after the last.
  virtual absl::Status Put(const std::string& key, const ObjectBody& body) = 0;

  // Makes the object; kAlreadyExists if it exists. That may be the result of its own request, retried after a lost
  // answer: the caller compares the existing object with its own.
  virtual absl::Status PutIfAbsent(const std::string& key, absl::string_view bytes) = 0;

  // Passes bytes `range` of the object to `sink` in order, in pieces of any size. kOutOfRange when the object ends
  // before; an error of `sink` ends the call and is returned.
  virtual absl::Status Get(const std::string& key, const ByteRange& range,
                           absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) = 0;

  // The number of bytes of the object.
  virtual absl::StatusOr<int64_t> Size(const std::string& key) = 0;

  // The objects whose keys begin with `prefix`; kResourceExhausted for more than kMaxListed, or kMaxListedBytes of
  // keys.
  virtual absl::StatusOr<ObjectListing> List(const std::string& prefix, bool one_level) = 0;

  // OK also when the object does not exist.
  virtual absl::Status Delete(const std::string& key) = 0;

  // Aborts the unfinished puts in parts of keys that begin with `prefix`: their parts cost money and no listing shows
  // them. Puts of a running process then fail.
  virtual absl::Status AbortUploads(const std::string& prefix) = 0;

  // "s3://bucket/key", for messages.
  virtual std::string UrlOf(const std::string& key) const = 0;
};

// The maximum number of keys, of at most 1 KiB each, that one List returns, and of all their bytes: the list is in
// memory.
inline constexpr int64_t kMaxListed = 1'000'000;
inline constexpr int64_t kMaxListedBytes = int64_t{128} << 20;

// All bytes of an object; kInvalidArgument for one of more than `max_bytes`.
absl::StatusOr<std::string> GetObject(ObjectStore& store, const std::string& key, int64_t max_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_OBJECT_STORE_H_
