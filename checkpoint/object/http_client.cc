// SPDX-License-Identifier: Apache-2.0
//
// Signing. libcurl signs the method, the path and the query as written in the URL, and all headers that it is given.
// The body is signed as UNSIGNED-PAYLOAD: its SHA-256 would have to be known before the first byte is sent, so every
// file would be read twice. Over https the bytes cannot change in transit, and the digests of a checkpoint detect other
// changes. `Expect` is switched off: it would cost a round trip for each part of a file.
#include "fsdp/checkpoint/object/http_client.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/object/s3_reply.h"

namespace fsdp {
namespace {

constexpr long kTransferBytes = 512 << 10;  // NOLINT(runtime/int): curl's own type

// A reply has a dozen headers.
constexpr size_t kMaxHeaders = 100;

}  // namespace

// A request in progress, with the state of libcurl's callbacks. They run on the thread that performs the request.
struct HttpClient::Exchange {
  const HttpRequest& request;
  void* handle = nullptr;
  void* headers = nullptr;
  char error[curl::kErrorBufferBytes] = {};
  HttpReply reply = {};
  int64_t sent = 0;  // bytes of the body that curl has taken
  absl::Status callback = {};

  static size_t OnHeader(char* data, size_t size, size_t count, void* exchange) {
    return static_cast<Exchange*>(exchange)->TakeHeader(absl::string_view(data, size * count));
  }
  static size_t OnBody(char* data, size_t size, size_t count, void* exchange) {
    return static_cast<Exchange*>(exchange)->TakeBody(absl::string_view(data, size * count));
  }
  static size_t OnRead(char* data, size_t size, size_t count, void* exchange) {
    return static_cast<Exchange*>(exchange)->GiveBody(data, static_cast<int64_t>(size * count));
  }
  // curl sends a body again from its beginning if a kept connection turns out to be closed.
  static int Rewind(void* exchange, int64_t offset, int origin) {
    static_cast<Exchange*>(exchange)->sent = offset;
    return origin == SEEK_SET ? 0 : 1;
  }

 private:
  // A status line begins a reply; there may be one with status 100 before it, whose headers are dropped.
  size_t TakeHeader(absl::string_view line) {
    if (absl::StartsWith(line, "HTTP/")) {
      const std::vector<absl::string_view> words = absl::StrSplit(absl::StripAsciiWhitespace(line), ' ');
      reply.headers.clear();
      if (words.size() < 2 || !absl::SimpleAtoi(words[1], &reply.status)) return 0;
      return line.size();
    }
    const std::pair<absl::string_view, absl::string_view> header = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (reply.headers.size() < kMaxHeaders) {
      reply.headers[absl::AsciiStrToLower(header.first)] = std::string(absl::StripAsciiWhitespace(header.second));
    }
    return line.size();
  }

  size_t TakeBody(absl::string_view bytes) {
    // Only a part of an object goes to the sink. The body of an error, or of a store that ignores Range, is kept for
    // the message, up to the bound.
    if (request.sink && reply.status == 206) {
      callback =
          request.sink(reply, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
    } else if (static_cast<int64_t>(reply.body.size() + bytes.size()) > kMaxReplyBytes) {
      callback = absl::DataLossError(absl::StrCat("the reply of the store is longer than ", kMaxReplyBytes, " bytes"));
    } else {
      reply.body.append(bytes.data(), bytes.size());
    }
    return callback.ok() ? bytes.size() : 0;
  }

  size_t GiveBody(char* data, int64_t room) {
    // 0 ends the body for curl, which has the length from kInFileSizeLarge and reports an early end.
    const int64_t nbytes = std::min(room, request.sent.nbytes - sent);
    if (nbytes <= 0) return 0;
    callback =
        request.body->read(request.sent.offset + sent, absl::MakeSpan(reinterpret_cast<std::byte*>(data), nbytes));
    if (!callback.ok()) return curl::kReadAbort;
    sent += nbytes;
    return nbytes;
  }
};

std::string HttpReply::Header(const std::string& name) const {
  const auto header = headers.find(name);
  return header == headers.end() ? "" : header->second;
}

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Create(const AwsConfig& config, const Options& options) {
  FSDP_ASSIGN_OR_RETURN(const CurlLibrary* const curl, CurlLibrary::Load());
  return std::unique_ptr<HttpClient>(new HttpClient(*curl, config, options));
}

HttpClient::HttpClient(const CurlLibrary& curl, const AwsConfig& config, const Options& options)
    : curl_(curl), config_(config), options_(options), signature_(absl::StrCat("aws:amz:", config.region, ":s3")) {}

HttpClient::~HttpClient() {
  for (void* handle : idle_) curl_.easy_cleanup(handle);
}

void* HttpClient::TakeHandle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) return curl_.easy_init();
  void* handle = idle_.back();
  idle_.pop_back();
  return handle;
}

// A reset handle keeps its connections.
void HttpClient::ReturnHandle(void* handle) {
  curl_.easy_reset(handle);
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(handle);
}

void HttpClient::SetOptions(Exchange& exchange) const {
  const auto set = curl_.easy_setopt;
  void* const handle = exchange.handle;
  set(handle, curl::kUrl, exchange.request.url.c_str());
  // Without it curl would remove "." and ".." from keys, after which the signature is wrong.
  set(handle, curl::kPathAsIs, 1L);
  set(handle, curl::kProtocols, static_cast<long>(curl::kProtocolsHttpAndHttps));  // NOLINT(runtime/int)
  // S3 speaks HTTP/1.1, and a static program's libcurl has no HTTP/2.
  set(handle, curl::kHttpVersion, static_cast<long>(curl::kHttpVersion11));  // NOLINT(runtime/int)
  if (!config_.ca_bundle.empty()) set(handle, curl::kCaInfo, config_.ca_bundle.c_str());
  // Signals for timeouts of name resolution would reach other threads of the program.
  set(handle, curl::kNoSignal, 1L);
  set(handle, curl::kErrorBuffer, exchange.error);
  set(handle, curl::kConnectTimeoutMs, static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));
  // A bound on silence and on trickling, not on the time of a large transfer. curl counts the bytes of bodies only.
  const bool is_post = exchange.request.method == "POST";
  set(handle, curl::kLowSpeedLimit, is_post ? 1L : static_cast<long>(kLeastBytesPerSecond));
  set(handle, curl::kLowSpeedTime, static_cast<long>(absl::ToInt64Seconds(options_.stall_timeout)));
  if (is_post) set(handle, curl::kTimeoutMs, static_cast<long>(absl::ToInt64Milliseconds(options_.post_timeout)));
  set(handle, curl::kAwsSigV4, signature_.c_str());
  set(handle, curl::kUserName, config_.credentials.access_key_id.c_str());
  set(handle, curl::kPassword, config_.credentials.secret_access_key.c_str());
  set(handle, curl::kHeaderFunction, &Exchange::OnHeader);
  set(handle, curl::kHeaderData, &exchange);
  set(handle, curl::kWriteFunction, &Exchange::OnBody);
  set(handle, curl::kWriteData, &exchange);
  set(handle, curl::kBufferSize, kTransferBytes);
  std::vector<std::string> lines = exchange.request.headers;
  lines.push_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!config_.credentials.session_token.empty()) {
    lines.push_back(absl::StrCat("x-amz-security-token: ", config_.credentials.session_token));
  }
  lines.push_back("Expect:");
  for (const std::string& line : lines) exchange.headers = curl_.slist_append(exchange.headers, line.c_str());
  set(handle, curl::kHttpHeader, exchange.headers);
  SetBody(exchange);
}

void HttpClient::SetBody(Exchange& exchange) const {
  const auto set = curl_.easy_setopt;
  void* const handle = exchange.handle;
  const HttpRequest& request = exchange.request;
  if (request.method == "HEAD") {
    set(handle, curl::kNoBody, 1L);
  } else if (request.method == "PUT") {
    set(handle, curl::kUpload, 1L);
    set(handle, curl::kUploadBufferSize, kTransferBytes);
    set(handle, curl::kInFileSizeLarge, request.sent.nbytes);
    set(handle, curl::kReadFunction, &Exchange::OnRead);
    set(handle, curl::kReadData, &exchange);
    set(handle, curl::kSeekFunction, &Exchange::Rewind);
    set(handle, curl::kSeekData, &exchange);
  } else if (request.method == "POST") {
    set(handle, curl::kPost, 1L);
    set(handle, curl::kPostFields, request.text.c_str());
    set(handle, curl::kPostFieldSizeLarge, static_cast<int64_t>(request.text.size()));
  } else if (request.method != "GET") {
    set(handle, curl::kCustomRequest, request.method.c_str());
  }
}

absl::StatusOr<HttpReply> HttpClient::Perform(const HttpRequest& request, absl::Status& callback) {
  Exchange exchange{.request = request, .handle = TakeHandle()};
  if (exchange.handle == nullptr) return absl::ResourceExhaustedError("libcurl has no memory for a request");
  const absl::Cleanup cleanup = [&] {
    ReturnHandle(exchange.handle);
    curl_.slist_free_all(exchange.headers);
  };
  SetOptions(exchange);
  std::string range;
  if (request.range) {
    range = absl::StrCat(request.range->offset, "-", request.range->end() - 1);
    curl_.easy_setopt(exchange.handle, curl::kRange, range.c_str());
  }
  const int code = curl_.easy_perform(exchange.handle);
  // curl's code would only say that a callback failed, and the caller must not repeat the request.
  if (!exchange.callback.ok()) {
    callback = exchange.callback;
    return absl::AbortedError(callback.message());
  }
  if (code == 0) return std::move(exchange.reply);
  return absl::UnavailableError(
      absl::StrCat("no reply: ", exchange.error[0] != '\0' ? exchange.error : curl_.easy_strerror(code)));
}

}  // namespace fsdp
