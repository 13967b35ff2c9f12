// SPDX-License-Identifier: Apache-2.0
//
// HttpClient: one HTTP request, signed with AWS Signature Version 4 by libcurl, and its reply. Connections are kept and
// reused. Redirects are not followed, since a signature is for one host. Requests are not retried here: s3_store.h
// knows which ones may be. Thread-safe: each thread's request uses its own connection.
#ifndef FSDP_CHECKPOINT_OBJECT_HTTP_CLIENT_H_
#define FSDP_CHECKPOINT_OBJECT_HTTP_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/object/aws_config.h"
#include "fsdp/checkpoint/object/curl_library.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/storage/byte_range.h"

namespace fsdp {

struct HttpReply {
  int status = 0;                              // 200
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the bytes that HttpRequest::sink took; at most kMaxReplyBytes

  // The value of a header, or empty.
  std::string Header(const std::string& name) const;
};

struct HttpRequest {
  std::string method = "GET";             // or HEAD, PUT, POST, DELETE
  std::string url = {};                   // path and query encoded, the query sorted, as it is signed
  std::vector<std::string> headers = {};  // "If-None-Match: *"
  std::optional<ByteRange> range = {};    // of GET; not empty
  const ObjectBody* body = nullptr;       // of PUT: bytes `sent` of it, streamed
  ByteRange sent = {};
  std::string text = {};  // the body of POST

  // Takes the body of a reply with status 206; if empty, it goes to `HttpReply::body`.
  std::function<absl::Status(const HttpReply& reply, absl::Span<const std::byte>)> sink = {};
};

class HttpClient {
 public:
  // In either direction. A store that sends a byte now and then must not hold a program for weeks; the slowest link of
  // a cluster is many times faster.
  static constexpr int kLeastBytesPerSecond = 1024;

  struct Options {
    absl::Duration connect_timeout = absl::Seconds(10);
    // A transfer of less than kLeastBytesPerSecond for this long is aborted; so is a reply whose headers do not come.
    // Whole seconds.
    absl::Duration stall_timeout = absl::Seconds(30);
    // Of a whole POST, while which a store that joins many parts sends a blank now and then, and no more.
    absl::Duration post_timeout = absl::Minutes(5);
  };

  // kFailedPrecondition if libcurl is not installed.
  static absl::StatusOr<std::unique_ptr<HttpClient>> Create(const AwsConfig& config, const Options& options);

  // No call may be in progress.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Blocks until the reply, with any status, is complete. kUnavailable without a reply: the host is not found, refuses,
  // disconnects, stalls or trickles. An error of `body` or `sink` goes to `callback` and ends the request with
  // kAborted.
  absl::StatusOr<HttpReply> Perform(const HttpRequest& request, absl::Status& callback);

 private:
  struct Exchange;

  HttpClient(const CurlLibrary& curl, const AwsConfig& config, const Options& options);
  void* TakeHandle();
  void ReturnHandle(void* handle);
  void SetOptions(Exchange& exchange) const;
  void SetBody(Exchange& exchange) const;

  const CurlLibrary& curl_;
  const AwsConfig config_;
  const Options options_;
  const std::string signature_;  // of CURLOPT_AWS_SIGV4

  std::mutex mutex_;
  std::vector<void*> idle_;  // guarded by mutex_; unused handles, each with a connection that may be open
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_HTTP_CLIENT_H_
