// SPDX-License-Identifier: Apache-2.0
//
// Every operation except a conditional put may be sent twice: the second request repeats the completed work. So each
// request is repeated while the store does not answer or reports an error of its own (IsRetried). Three answers need
// care, since they may answer a repetition of a request that had succeeded although its answer was lost. libcurl also
// repeats a request, without reporting it, if a kept connection was closed:
//
//   PutIfAbsent                412, but the object may be ours: the caller compares (object_store.h)
//   the last request of a      404 NoSuchUpload, but the object may be complete: it is if it has the size
//     put in parts
//   the abort of one           404 NoSuchUpload: done
#include "fsdp/checkpoint/object/s3_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/object/http_client.h"
#include "fsdp/checkpoint/object/s3_reply.h"
#include "fsdp/checkpoint/object/s3_request_url.h"

namespace fsdp {
namespace {

// S3's limits.
constexpr int64_t kMaxParts = 10000;
constexpr int64_t kMaxObjectBytes = int64_t{5} << 40;
// From this number of pages on a listing must have this many keys in each, on average. Most stores send 1000.
constexpr int64_t kManyPages = 1000;
constexpr int64_t kLeastKeysInPage = 10;

constexpr absl::Duration kLongestPause = absl::Seconds(10);

// A get that has received this many bytes since its last attempt has all its attempts again.
constexpr int64_t kProgressBytes = int64_t{1} << 20;

bool IsSuccess(const HttpReply& reply) { return reply.status >= 200 && reply.status < 300; }

bool IsRetried(int status, const S3Error& error) {
  static constexpr int kStatuses[] = {408, 429, 500, 502, 503, 504};
  static constexpr absl::string_view kCodes[] = {"ConditionalRequestConflict", "InternalError",
                                                 "OperationAborted",           "RequestTimeout",
                                                 "ServiceUnavailable",         "SlowDown"};
  return std::find(std::begin(kStatuses), std::end(kStatuses), status) != std::end(kStatuses) ||
         std::find(std::begin(kCodes), std::end(kCodes), error.code) != std::end(kCodes);
}

absl::StatusCode CodeOf(int status, const S3Error& error) {
  if (IsRetried(status, error)) return absl::StatusCode::kUnavailable;
  switch (status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 409:
    case 412:
      return absl::StatusCode::kAlreadyExists;
    case 416:
      return absl::StatusCode::kOutOfRange;
    case 501:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kFailedPrecondition;
  }
}

// A remedy for the error; empty if the answer explains itself.
std::string Advice(int status, const S3Error& error, const std::string& region) {
  if (error.code == "NoSuchBucket") return "; make the bucket, or see its name and AWS_ENDPOINT_URL_S3";
  if (error.code == "RequestTimeTooSkewed") return "; set this machine's clock";
  if (error.code == "ExpiredToken") return "; renew AWS_SESSION_TOKEN";
  const bool is_elsewhere = status == 301 || status == 307 || error.code == "AuthorizationHeaderMalformed";
  if (is_elsewhere || !error.region.empty()) {
    return absl::StrCat("; the bucket is not in ", region, ": set AWS_REGION",
                        error.region.empty() ? "" : absl::StrCat("=", error.region));
  }
  if (status == 401 || status == 403) {
    return "; check that AWS_PROFILE or AWS_ACCESS_KEY_ID is the intended one and that its policy allows s3:GetObject, "
           "PutObject, "
           "DeleteObject, AbortMultipartUpload, ListBucket and ListBucketMultipartUploads here";
  }
  if (status == 501) return "; the store lacks a part of S3's API that checkpoints need";
  return "";
}

class S3Store final : public ObjectStore {
 public:
  S3Store(const std::string& bucket, const AwsConfig& config, const S3Options& options,
          std::unique_ptr<HttpClient> http, std::unique_ptr<ThreadPool> pool)
      : bucket_(bucket),
        region_(config.region),
        base_url_(S3BaseUrl(bucket, config)),
        options_(options),
        http_(std::move(http)),
        pool_(std::move(pool)) {}

  absl::Status Put(const std::string& key, const ObjectBody& body) override {
    if (body.nbytes > kMaxObjectBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(UrlOf(key), ": ", body.nbytes, " bytes, expected at most S3's limit of 5 TiB"));
    }
    if (body.nbytes > options_.part_bytes) return PutInParts(key, body);
    return Send({.method = "PUT", .url = ObjectUrl(key), .body = &body, .sent = {0, body.nbytes}}, "put", key).status();
  }

  absl::Status PutIfAbsent(const std::string& key, absl::string_view bytes) override {
    const ObjectBody body = TextBody(bytes);
    return Send({.method = "PUT",
                 .url = ObjectUrl(key),
                 .headers = {"If-None-Match: *"},
                 .body = &body,
                 .sent = {0, body.nbytes}},
                "put", key)
        .status();
  }

  absl::Status Get(const std::string& key, const ByteRange& range,
                   absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) override {
    ByteRange left = range;
    absl::Status status;
    for (int attempt = 0; left.nbytes > 0; ++attempt) {
      if (attempt == options_.attempts) return status;
      if (attempt > 0) Pause(attempt);
      const int64_t before = left.nbytes;
      status = GetOnce(key, left, sink);
      if (!status.ok() && !absl::IsUnavailable(status)) return status;
      if (before - left.nbytes >= kProgressBytes) attempt = 0;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Size(const std::string& key) override {
    FSDP_ASSIGN_OR_RETURN(const HttpReply reply, Send({.method = "HEAD", .url = ObjectUrl(key)}, "head", key));
    int64_t nbytes = -1;
    if (absl::SimpleAtoi(reply.Header("content-length"), &nbytes) && nbytes >= 0) return nbytes;
    return absl::DataLossError(absl::StrCat(UrlOf(key), ": the reply of the store has no Content-Length"));
  }

  absl::StatusOr<ObjectListing> List(const std::string& prefix, bool one_level) override {
    ObjectListing listing;
    int64_t key_bytes = 0;
    std::string token;
    int64_t pages = 0;
    do {
      S3Query query = {{"list-type", "2"}, {"prefix", prefix}};
      if (one_level) query.emplace_back("delimiter", "/");
      if (!token.empty()) query.emplace_back("continuation-token", token);
      FSDP_ASSIGN_OR_RETURN(const HttpReply reply, Send({.url = BucketUrl(query)}, "list", prefix));
      absl::StatusOr<ListPage> page = ParseListPage(reply.body, prefix);
      if (!page.ok()) return Annotate(page.status(), absl::StrCat("list of ", UrlOf(prefix)));
      for (const ObjectEntry& object : page->listing.objects) key_bytes += static_cast<int64_t>(object.key.size());
      for (const std::string& folder : page->listing.folders) key_bytes += static_cast<int64_t>(folder.size());
      std::move(page->listing.objects.begin(), page->listing.objects.end(), std::back_inserter(listing.objects));
      std::move(page->listing.folders.begin(), page->listing.folders.end(), std::back_inserter(listing.folders));
      const auto listed = static_cast<int64_t>(listing.objects.size() + listing.folders.size());
      if (listed > kMaxListed || key_bytes > kMaxListedBytes) {
        return absl::ResourceExhaustedError(absl::StrCat("list of ", UrlOf(prefix), ": more than ", kMaxListed,
                                                         " keys or ", kMaxListedBytes >> 20,
                                                         " MiB of them; name a longer prefix"));
      }
      // A store that sends a key or two at a time could go on for days.
      if (++pages >= kManyPages && listed < pages * kLeastKeysInPage) {
        return absl::DataLossError(absl::StrCat("list of ", UrlOf(prefix), ": ", pages, " pages have ", listed,
                                                " keys; a store sends up to 1000 in a page"));
      }
      // A page without a new key but with another token could repeat forever.
      if (!page->next_token.empty() &&
          (page->next_token == token || (page->listing.objects.empty() && page->listing.folders.empty()))) {
        return absl::DataLossError(absl::StrCat("list of ", UrlOf(prefix), ": a page that leads nowhere"));
      }
      token = std::move(page->next_token);
    } while (!token.empty());
    return listing;
  }

  absl::Status Delete(const std::string& key) override {
    const absl::Status status = Send({.method = "DELETE", .url = ObjectUrl(key)}, "delete", key).status();
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

  absl::Status AbortUploads(const std::string& prefix) override {
    // Aborted uploads leave the list, so its first page is requested again while there are more. The bound on pages
    // stops a store that keeps listing them.
    for (int pages = 0; pages < kMaxParts; ++pages) {
      FSDP_ASSIGN_OR_RETURN(const HttpReply reply,
                            Send({.url = BucketUrl({{"prefix", prefix}, {"uploads", ""}})}, "list of uploads", prefix));
      const absl::StatusOr<UploadsPage> page = ParseUploadsPage(reply.body, prefix);
      if (!page.ok()) return Annotate(page.status(), absl::StrCat("list of uploads of ", UrlOf(prefix)));
      for (const UploadsPage::Upload& upload : page->uploads) {
        FSDP_RETURN_IF_ERROR(AbortUpload(upload.key, upload.id));
      }
      if (!page->is_truncated || page->uploads.empty()) return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("uploads of ", UrlOf(prefix), " are still listed after their abort"));
  }

  std::string UrlOf(const std::string& key) const override {
    return Printable(absl::StrCat("s3://", bucket_, "/", key));
  }

 private:
  // The URL of a key, and of an operation on the bucket, which is the root. Amazon requires the slash after a host name
  // with the bucket; servers with the bucket in the path accept both forms.
  std::string ObjectUrl(const std::string& key, const S3Query& query = {}) const {
    return absl::StrCat(base_url_, EncodeS3Key(key), EncodeS3Query(query));
  }
  std::string BucketUrl(const S3Query& query) const { return absl::StrCat(base_url_, EncodeS3Query(query)); }

  void Pause(int attempt) const {
    const absl::Duration pause = std::min(kLongestPause, options_.first_pause * (1 << std::min(attempt - 1, 20)));
    // Random in effect: clients that failed together must not retry together.
    absl::SleepFor(pause + pause * (static_cast<double>(absl::ToUnixNanos(SteadyNow()) % 1000) / 2000));
  }

  // The error for `reply`, which is not a success.
  absl::Status ErrorOf(const HttpReply& reply, absl::string_view what, const std::string& key) const {
    S3Error error = ParseError(reply.body);
    if (error.region.empty()) error.region = Printable(reply.Header("x-amz-bucket-region"));
    if (error.region == region_) error.region.clear();
    const std::string code = error.code.empty() ? "" : absl::StrCat(" ", error.code, ": ", error.message);
    return absl::Status(CodeOf(reply.status, error),
                        absl::StrCat(what, " of ", UrlOf(key), ": the store answered HTTP ", reply.status, code,
                                     Advice(reply.status, error, region_)));
  }

  // Repeats the request until it has a final answer. An error of `request.body` is returned unchanged.
  absl::StatusOr<HttpReply> Send(const HttpRequest& request, absl::string_view what, const std::string& key) {
    FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
    absl::Status status;
    for (int attempt = 0; attempt < options_.attempts; ++attempt) {
      if (attempt > 0) Pause(attempt);
      absl::Status callback;
      absl::StatusOr<HttpReply> reply = http_->Perform(request, callback);
      if (!callback.ok()) return callback;
      // An error may come with status 200, after blanks that keep a slow request alive.
      if (reply.ok() && IsSuccess(*reply) && (request.method != "POST" || ParseError(reply->body).code.empty())) {
        return reply;
      }
      status = reply.ok() ? ErrorOf(*reply, what, key)
                          : Annotate(reply.status(), absl::StrCat(what, " of ", UrlOf(key), " at ", base_url_));
      if (!absl::IsUnavailable(status)) return status;
    }
    return WithMessage(status, absl::StrCat(status.message(), " (", options_.attempts, " attempts)"));
  }

  // One attempt; removes the received bytes from the front of `left`.
  absl::Status GetOnce(const std::string& key, ByteRange& left,
                       absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) {
    FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
    HttpRequest request = {.url = ObjectUrl(key), .range = left};
    const std::string expected = absl::StrCat("bytes ", left.offset, "-");
    request.sink = [&](const HttpReply& reply, absl::Span<const std::byte> bytes) {
      if (!absl::StartsWith(reply.Header("content-range"), expected)) {
        return absl::DataLossError(absl::StrCat("get of ", UrlOf(key), ": the store sends ",
                                                Quote(reply.Header("content-range")), ", expected ", expected));
      }
      if (static_cast<int64_t>(bytes.size()) > left.nbytes) {
        return absl::DataLossError(absl::StrCat("get of ", UrlOf(key), ": the store sends more than was asked for"));
      }
      left.offset += static_cast<int64_t>(bytes.size());
      left.nbytes -= static_cast<int64_t>(bytes.size());
      return sink(bytes);
    };
    // `expected` refers to the first byte of this attempt, so it is computed before `left` changes.
    absl::Status callback;
    const absl::StatusOr<HttpReply> reply = http_->Perform(request, callback);
    if (!callback.ok()) return callback;
    if (!reply.ok()) return Annotate(reply.status(), absl::StrCat("get of ", UrlOf(key), " at ", base_url_));
    if (!IsSuccess(*reply)) return ErrorOf(*reply, "get", key);
    if (reply->status != 206) {
      return absl::DataLossError(absl::StrCat("get of ", UrlOf(key), ": the store answered HTTP ", reply->status,
                                              ", expected 206: it does not send parts of objects"));
    }
    if (left.nbytes == 0) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat("get of ", UrlOf(key), ": the object ends at byte ", left.offset,
                                              ", expected ", left.nbytes, " more"));
  }

  absl::Status AbortUpload(const std::string& key, const std::string& id) {
    const absl::Status status =
        Send({.method = "DELETE", .url = ObjectUrl(key, {{"uploadId", id}})}, "abort of the upload", key).status();
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

  absl::Status PutInParts(const std::string& key, const ObjectBody& body) {
    FSDP_ASSIGN_OR_RETURN(const HttpReply begun, Send({.method = "POST",
                                                       .url = ObjectUrl(key, {{"uploads", ""}}),
                                                       .headers = {"Content-Type: "
                                                                   "application/octet-stream"}},
                                                      "put in parts", key));
    const absl::StatusOr<std::string> id = ParseUploadId(begun.body);
    if (!id.ok()) return Annotate(id.status(), absl::StrCat("put in parts of ", UrlOf(key)));
    absl::StatusOr<std::string> parts = PutParts(key, *id, body);
    const absl::Status status = parts.ok() ? CompleteUpload(key, *id, body, *parts) : parts.status();
    // If this fails too, a later AbortUploads finds the upload.
    if (!status.ok()) (void)AbortUpload(key, *id);
    return status;
  }

  // Puts all parts, and returns the text of the request that joins them to an object.
  absl::StatusOr<std::string> PutParts(const std::string& key, const std::string& id, const ObjectBody& body) {
    const int64_t part_bytes = std::max(options_.part_bytes, (body.nbytes + kMaxParts - 1) / kMaxParts);
    const int64_t count = (body.nbytes + part_bytes - 1) / part_bytes;
    std::vector<std::string> tags(count);
    FSDP_RETURN_IF_ERROR(pool_->ParallelFor(count, [&](int64_t i) -> absl::Status {
      const int64_t begin = i * part_bytes;
      const HttpRequest request = {.method = "PUT",
                                   .url = ObjectUrl(key, {{"partNumber", absl::StrCat(i + 1)}, {"uploadId", id}}),
                                   .body = &body,
                                   .sent = {begin, std::min(part_bytes, body.nbytes - begin)}};
      FSDP_ASSIGN_OR_RETURN(const HttpReply reply, Send(request, absl::StrCat("put of part ", i + 1), key));
      tags[i] = reply.Header("etag");
      if (!tags[i].empty() && tags[i].size() <= 256) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat("put of part ", i + 1, " of ", UrlOf(key), ": the reply has no ETag"));
    }));
    std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
    for (int64_t i = 0; i < count; ++i) {
      const std::string tag = absl::StrReplaceAll(tags[i], {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
      absl::StrAppend(&text, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>", tag, "</ETag></Part>");
    }
    return absl::StrCat(text, "</CompleteMultipartUpload>");
  }

  absl::Status CompleteUpload(const std::string& key, const std::string& id, const ObjectBody& body,
                              const std::string& parts) {
    const HttpRequest request = {.method = "POST",
                                 .url = ObjectUrl(key, {{"uploadId", id}}),
                                 .headers = {"Content-Type: application/xml"},
                                 .text = parts};
    const absl::Status status = Send(request, "end of the put in parts", key).status();
    if (!absl::IsNotFound(status)) return status;
    const absl::StatusOr<int64_t> nbytes = Size(key);
    return nbytes.ok() && *nbytes == body.nbytes ? absl::OkStatus() : status;
  }

  const std::string bucket_;
  const std::string region_;
  const std::string base_url_;  // ends in a slash
  const S3Options options_;
  const std::unique_ptr<HttpClient> http_;
  const std::unique_ptr<ThreadPool> pool_;  // of parts
};

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenS3Store(const std::string& bucket, const AwsConfig& config,
                                                         const S3Options& options) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<HttpClient> http,
                        HttpClient::Create(config, {.stall_timeout = options.stall_timeout}));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options.threads, "object-parts"));
  return std::make_unique<S3Store>(bucket, config, options, std::move(http), std::move(pool));
}

}  // namespace fsdp
