// SPDX-License-Identifier: Apache-2.0
//
// FakeS3Server: for tests: S3's API over HTTP on the loopback, in this process, in front of a FakeObjectStore. It
// checks the signature of every request independently (reference_aws_signature.h), lists three keys per page, and
// injects network faults. Threads: one that accepts, and one for each connection.
#ifndef FSDP_CHECKPOINT_OBJECT_FAKE_S3_SERVER_H_
#define FSDP_CHECKPOINT_OBJECT_FAKE_S3_SERVER_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/checkpoint/object/aws_config.h"
#include "fsdp/checkpoint/object/fake_object_store.h"

namespace fsdp {

class FakeS3Server {
 public:
  enum class Fault {
    kNone,
    kSlowDown,        // HTTP 503, without doing the work
    kBadGateway,      // HTTP 502 and a page of HTML
    kDrop,            // closes the connection without a reply and without doing the work
    kDropAfter,       // does the work, then closes the connection
    kCutReply,        // does the work, and closes in the middle of the reply's body
    kErrorInSuccess,  // HTTP 200 with an error in the body
    kWrongRange,      // another part of the object than requested
    kOneKeyPage,      // a page of a listing, with one new key and the token of another page
    kSilent,          // does the work, and never replies
    kTrickle,         // does the work, and sends 100 bytes of the reply a second for at most 20 seconds
    kTrickleBody,     // the same, but for the headers
  };

  // Serves `store` as the bucket "models" to the holder of the keys of config().
  static absl::StatusOr<std::unique_ptr<FakeS3Server>> Start(FakeObjectStore& store);

  // Closes all connections.
  ~FakeS3Server();
  FakeS3Server(const FakeS3Server&) = delete;
  FakeS3Server& operator=(const FakeS3Server&) = delete;

  // The endpoint and keys for clients.
  const AwsConfig& config() const { return config_; }

  // The next requests have these faults, one each.
  void InjectFaults(const std::vector<Fault>& faults);

  // "PUT /models/run/manifest.json?..." of each request so far, and the number of requests with a wrong signature.
  std::vector<std::string> requests() const;
  int refused() const;

 private:
  struct Request {
    std::string method;
    std::string path;   // encoded
    std::string query;  // encoded
    std::map<std::string, std::string> headers;
    std::string body;
  };
  struct Reply {
    int status = 200;
    std::map<std::string, std::string> headers;
    std::string body;
  };

  explicit FakeS3Server(FakeObjectStore& store) : store_(store) {}
  void Accept();
  void Serve(int fd);
  Fault NextFault(const Request& request);
  static bool IsSlow(Fault fault);
  bool IsSigned(const Request& request) const;
  Reply Answer(const Request& request);
  Reply AnswerBucket(const std::map<std::string, std::string>& query);
  Reply AnswerObject(const Request& request, const std::string& key, const std::map<std::string, std::string>& query);
  Reply AnswerGet(const Request& request, const std::string& key);

  FakeObjectStore& store_;
  AwsConfig config_;
  FileDescriptor listener_;
  std::thread accepting_;

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::deque<Fault> faults_;
  std::vector<std::string> requests_;
  int refused_ = 0;
  bool closing_ = false;
  std::set<int> connections_;
  std::vector<std::thread> serving_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_FAKE_S3_SERVER_H_
