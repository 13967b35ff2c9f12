// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/fake_s3_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/object/reference_aws_signature.h"

namespace fsdp {
namespace {

// So few that every test with a listing reads several pages.
constexpr size_t kKeysInPage = 3;

std::string Decode(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::map<std::string, std::string> ParseQuery(const std::string& query) {
  std::map<std::string, std::string> values;
  for (const absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> value = absl::StrSplit(part, absl::MaxSplits('=', 1));
    values[Decode(value.first)] = Decode(value.second);
  }
  return values;
}

std::string ErrorXml(absl::string_view code) {
  return absl::StrCat("<?xml version=\"1.0\"?><Error><Code>", code,
                      "</Code><Message>as the test wants</Message></Error>");
}

bool SendAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    // Without MSG_NOSIGNAL a client that has gone would end the test by SIGPIPE.
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(sent);
  }
  return true;
}

// Sends 100 bytes a second, until the client has gone. Bounded, so that a test ends if the client has no bound.
void Trickle(int fd, absl::string_view bytes) {
  for (const char& byte : bytes.substr(0, 2000)) {
    if (!SendAll(fd, {&byte, 1})) return;
    absl::SleepFor(absl::Milliseconds(10));
  }
}

// Reads until `buffer` has `nbytes` or, for 0, the end of the headers.
bool ReceiveUntil(int fd, size_t nbytes, std::string& buffer) {
  const auto is_done = [&] {
    return nbytes > 0 ? buffer.size() >= nbytes : buffer.find("\r\n\r\n") != std::string::npos;
  };
  while (!is_done()) {
    char piece[65536];
    const ssize_t received = recv(fd, piece, sizeof(piece), 0);
    if (received <= 0) return false;
    buffer.append(piece, received);
  }
  return true;
}

}  // namespace

// Port 0: the kernel chooses a free one, so tests can run at the same time.
absl::StatusOr<std::unique_ptr<FakeS3Server>> FakeS3Server::Start(FakeObjectStore& store) {
  std::unique_ptr<FakeS3Server> server(new FakeS3Server(store));
  server->listener_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const int fd = server->listener_.get();
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::ErrnoToStatus(errno, "the loopback does not listen");
  }
  // A secret with '/' and '+', and a token with '=', so that wrong escaping shows.
  server->config_ = {.credentials = {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token=="},
                     .region = "eu-central-1",
                     .endpoint = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port)),
                     .ca_bundle = {}};
  server->accepting_ = std::thread([server = server.get()] { server->Accept(); });
  return server;
}

FakeS3Server::~FakeS3Server() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    // shutdown, not close: it wakes a thread in recv, and the number stays taken until that thread closes it.
    for (const int fd : connections_) shutdown(fd, SHUT_RDWR);
  }
  shutdown(listener_.get(), SHUT_RDWR);
  if (accepting_.joinable()) accepting_.join();
  // After accepting_ has ended, serving_ no longer grows, so it needs no lock here. Its threads take the lock to end.
  for (std::thread& thread : serving_) thread.join();
}

void FakeS3Server::InjectFaults(const std::vector<Fault>& faults) {
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_.assign(faults.begin(), faults.end());
}

std::vector<std::string> FakeS3Server::requests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return requests_;
}

int FakeS3Server::refused() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return refused_;
}

void FakeS3Server::Accept() {
  while (true) {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) {
      close(fd);
      return;
    }
    connections_.insert(fd);
    serving_.emplace_back([this, fd] {
      Serve(fd);
      // Erased and closed under one lock, so that the destructor never shuts down a number that is used again.
      const std::lock_guard<std::mutex> closed(mutex_);
      connections_.erase(fd);
      close(fd);
    });
  }
}

void FakeS3Server::Serve(int fd) {
  std::string buffer;
  // Requests follow each other on a kept connection: `buffer` may have the beginning of the next one.
  while (ReceiveUntil(fd, 0, buffer)) {
    const size_t head = buffer.find("\r\n\r\n") + 4;
    const std::vector<std::string> lines = absl::StrSplit(buffer.substr(0, head - 4), "\r\n");
    const std::vector<std::string> words = absl::StrSplit(lines[0], ' ');
    if (words.size() != 3) return;
    const std::pair<std::string, std::string> target = absl::StrSplit(words[1], absl::MaxSplits('?', 1));
    Request request = {words[0], target.first, target.second, {}, {}};
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::pair<std::string, std::string> header = absl::StrSplit(lines[i], absl::MaxSplits(':', 1));
      request.headers[absl::AsciiStrToLower(header.first)] = std::string(absl::StripAsciiWhitespace(header.second));
    }
    size_t nbytes = 0;
    (void)absl::SimpleAtoi(request.headers["content-length"], &nbytes);
    if (nbytes > 0 && !ReceiveUntil(fd, head + nbytes, buffer)) return;
    request.body = buffer.substr(head, nbytes);
    buffer.erase(0, head + nbytes);
    // One fault per request, in the order of arrival, also if connections are concurrent.
    const Fault fault = NextFault(request);
    // Drop and the wrong replies come instead of Answer, so the store does not change; kDropAfter and kCutReply come
    // after it.
    if (fault == Fault::kDrop) return;
    Reply reply;
    if (fault == Fault::kSlowDown) {
      reply = {503, {}, ErrorXml("SlowDown")};
    } else if (fault == Fault::kBadGateway) {
      reply = {502, {}, "<html><body>Bad Gateway</body></html>"};
    } else if (fault == Fault::kOneKeyPage) {
      const std::string name = absl::StrCat("run/", requests().size());
      reply = {200,
               {},
               absl::StrCat("<ListBucketResult><Contents><Key>", name, "</Key><Size>1</Size></Contents>",
                            "<IsTruncated>true</IsTruncated><NextContinuationToken>", name,
                            "</NextContinuationToken></ListBucketResult>")};
    } else if (fault == Fault::kErrorInSuccess) {
      reply = {200, {}, ErrorXml("InternalError")};
    } else {
      reply = Answer(request);
    }
    if (fault == Fault::kDropAfter) return;
    if (fault == Fault::kWrongRange) reply.headers["Content-Range"] = "bytes 7-8/9";
    // A reply to HEAD has the object's Content-Length and no body.
    if (request.method != "HEAD") reply.headers["Content-Length"] = absl::StrCat(reply.body.size());
    std::string text = absl::StrCat("HTTP/1.1 ", reply.status, " Answer\r\n");
    for (const auto& [name, value] : reply.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
    absl::StrAppend(&text, "\r\n", reply.body);
    if (IsSlow(fault)) {
      // An end of silence is the end of the connection.
      if (fault == Fault::kSilent) (void)ReceiveUntil(fd, buffer.size() + 1, buffer);
      const size_t fast = fault == Fault::kTrickleBody ? text.size() - reply.body.size() : 0;
      if (fault != Fault::kSilent && SendAll(fd, text.substr(0, fast))) Trickle(fd, text.substr(fast));
      return;
    }
    // The Content-Length still counts the whole body, so the client can notice the cut.
    if (fault == Fault::kCutReply) text.erase(text.size() - reply.body.size() / 2);
    if (!SendAll(fd, text) || fault == Fault::kCutReply) return;
  }
}

bool FakeS3Server::IsSlow(Fault fault) {
  return fault == Fault::kSilent || fault == Fault::kTrickle || fault == Fault::kTrickleBody;
}

FakeS3Server::Fault FakeS3Server::NextFault(const Request& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  requests_.push_back(absl::StrCat(request.method, " ", request.path, request.query.empty() ? "" : "?", request.query));
  if (faults_.empty()) return Fault::kNone;
  const Fault fault = faults_.front();
  faults_.pop_front();
  return fault;
}

// "AWS4-HMAC-SHA256 Credential=KEY/DAY/REGION/s3/aws4_request, SignedHeaders=a;b, Signature=HEX".
bool FakeS3Server::IsSigned(const Request& request) const {
  const auto header = request.headers.find("authorization");
  const auto payload = request.headers.find("x-amz-content-sha256");
  const auto token = request.headers.find("x-amz-security-token");
  if (header == request.headers.end() || payload == request.headers.end() || token == request.headers.end()) {
    return false;
  }
  std::map<std::string, std::string> fields;
  absl::string_view text = header->second;
  if (!absl::ConsumePrefix(&text, "AWS4-HMAC-SHA256 ")) return false;
  for (const absl::string_view field : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(absl::StripAsciiWhitespace(field), absl::MaxSplits('=', 1));
    fields.insert(pair);
  }
  // Only the signed headers of the request, since proxies may add others. The four that matter are required below.
  SignedRequest is_signed = {.method = request.method,
                             .path = request.path,
                             .query = request.query,
                             .headers = request.headers,
                             .signed_headers = absl::StrSplit(fields["SignedHeaders"], ';'),
                             .payload = payload->second,
                             .region = config_.region};
  const std::vector<std::string>& names = is_signed.signed_headers;
  for (const char* wanted : {"host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}) {
    if (std::find(names.begin(), names.end(), wanted) == names.end()) return false;
  }
  return absl::StartsWith(fields["Credential"], config_.credentials.access_key_id + "/") &&
         token->second == config_.credentials.session_token &&
         fields["Signature"] == AwsSignature(is_signed, config_.credentials.secret_access_key);
}

FakeS3Server::Reply FakeS3Server::Answer(const Request& request) {
  // Before anything else, as S3 does: a wrong signature learns nothing about the bucket.
  if (!IsSigned(request)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++refused_;
    return {403, {}, ErrorXml("SignatureDoesNotMatch")};
  }
  const std::map<std::string, std::string> query = ParseQuery(request.query);
  absl::string_view key = request.path;
  // Path style: the bucket is the first part of the path, as for every endpoint other than Amazon's.
  if (!absl::ConsumePrefix(&key, "/models/")) return {404, {}, ErrorXml("NoSuchBucket")};
  return key.empty() ? AnswerBucket(query) : AnswerObject(request, Decode(key), query);
}

FakeS3Server::Reply FakeS3Server::AnswerBucket(const std::map<std::string, std::string>& query) {
  const auto value = [&](const char* name) {
    const auto found = query.find(name);
    return found == query.end() ? "" : found->second;
  };
  std::string text;
  if (query.count("uploads") != 0) {
    size_t listed = 0;
    for (const auto& [id, key] : store_.uploads()) {
      if (!absl::StartsWith(key, value("prefix")) || ++listed > kKeysInPage) continue;
      absl::StrAppend(&text, "<Upload><Key>", Escape(key), "</Key><UploadId>", id, "</UploadId></Upload>");
    }
    return {200,
            {},
            absl::StrCat("<ListMultipartUploadsResult>", text, "<IsTruncated>", listed > kKeysInPage ? "true" : "false",
                         "</IsTruncated></ListMultipartUploadsResult>")};
  }
  // The store lists everything; the pages are cut here, since S3Store must join them.
  const absl::StatusOr<ObjectListing> listing = store_.List(value("prefix"), value("delimiter") == "/");
  if (!listing.ok()) return {500, {}, ErrorXml("InternalError")};
  // Objects and folders in one order, as S3 counts them; the token is the last name of the previous page.
  std::map<std::string, std::string> entries;
  for (const ObjectEntry& object : listing->objects) {
    entries[object.key] =
        absl::StrCat("<Contents><Key>", Escape(object.key), "</Key><Size>", object.nbytes, "</Size></Contents>");
  }
  for (const std::string& folder : listing->folders) {
    entries[folder] = absl::StrCat("<CommonPrefixes><Prefix>", Escape(folder), "</Prefix></CommonPrefixes>");
  }
  auto entry = entries.upper_bound(value("continuation-token"));
  std::string last;
  for (size_t i = 0; i < kKeysInPage && entry != entries.end(); ++i, ++entry) {
    last = entry->first;
    text += entry->second;
  }
  if (entry != entries.end()) {
    absl::StrAppend(&text, "<IsTruncated>true</IsTruncated><NextContinuationToken>", Escape(last),
                    "</NextContinuationToken>");
  }
  return {200, {}, absl::StrCat("<?xml version=\"1.0\"?>\n<ListBucketResult>", text, "</ListBucketResult>")};
}

FakeS3Server::Reply FakeS3Server::AnswerObject(const Request& request, const std::string& key,
                                               const std::map<std::string, std::string>& query) {
  const auto reply_to = [](const absl::Status& status) -> Reply {
    if (status.ok()) return {200, {{"ETag", "\"tag&1\""}}, ""};
    // Every other operation on a missing key succeeds or is handled in AnswerGet.
    if (absl::IsNotFound(status)) return {404, {}, ErrorXml("NoSuchUpload")};
    if (absl::IsAlreadyExists(status)) return {412, {}, ErrorXml("PreconditionFailed")};
    return {500, {}, ErrorXml("InternalError")};
  };
  const auto id = query.find("uploadId");
  if (request.method == "GET" || request.method == "HEAD") return AnswerGet(request, key);
  if (request.method == "DELETE") {
    const absl::Status status = id == query.end() ? store_.Delete(key) : store_.AbortUpload(id->second);
    return status.ok() ? Reply{204, {}, ""} : reply_to(status);
  }
  if (request.method == "POST" && query.count("uploads") != 0) {
    const absl::StatusOr<std::string> begun = store_.CreateUpload(key);
    if (!begun.ok()) return reply_to(begun.status());
    return {200,
            {},
            absl::StrCat("<InitiateMultipartUploadResult><UploadId>", *begun,
                         "</UploadId></InitiateMultipartUploadResult>")};
  }
  if (request.method == "POST") {
    // The ETag has an '&', so the test finds a client that does not escape it.
    if (!absl::StrContains(request.body, "<Part><PartNumber>1</PartNumber><ETag>\"tag&amp;1\"</ETag></Part>")) {
      return {400, {}, ErrorXml("InvalidPart")};
    }
    Reply reply = reply_to(store_.CompleteUpload(id->second));
    if (reply.status == 200) reply.body = "<CompleteMultipartUploadResult/>";
    return reply;
  }
  if (id != query.end()) {
    int part = 0;
    (void)absl::SimpleAtoi(query.at("partNumber"), &part);
    return reply_to(store_.PutPart(id->second, part, request.body));
  }
  const auto condition = request.headers.find("if-none-match");
  if (condition != request.headers.end()) return reply_to(store_.PutIfAbsent(key, request.body));
  return reply_to(store_.Put(key, TextBody(request.body)));
}

FakeS3Server::Reply FakeS3Server::AnswerGet(const Request& request, const std::string& key) {
  const std::map<std::string, std::string> objects = store_.objects();
  const auto object = objects.find(key);
  if (object == objects.end()) return {404, {}, request.method == "HEAD" ? "" : ErrorXml("NoSuchKey")};
  const std::string& bytes = object->second;
  if (request.method == "HEAD") return {200, {{"Content-Length", absl::StrCat(bytes.size())}}, ""};
  const auto header = request.headers.find("range");
  if (header == request.headers.end()) return {200, {}, bytes};
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(absl::StripPrefix(header->second, "bytes="), absl::MaxSplits('-', 1));
  size_t begin = 0;
  size_t last = 0;
  if (!absl::SimpleAtoi(ends.first, &begin) || !absl::SimpleAtoi(ends.second, &last) || begin >= bytes.size()) {
    return {416, {}, ErrorXml("InvalidRange")};
  }
  // As S3: a range that ends after the object is cut, one that begins after it is an error.
  last = std::min(last, bytes.size() - 1);
  return {206,
          {{"Content-Range", absl::StrCat("bytes ", begin, "-", last, "/", bytes.size())}},
          bytes.substr(begin, last - begin + 1)};
}

}  // namespace fsdp
