// SPDX-License-Identifier: Apache-2.0
//
// Parsers for the XML of S3's replies, strict and in bounded memory: the server at the endpoint is not trusted. They
// accept elements, text, the five named entities, numbered ones, and an XML declaration, and refuse document types,
// other entities, CDATA and processing instructions. Pure.
#ifndef FSDP_CHECKPOINT_OBJECT_S3_REPLY_H_
#define FSDP_CHECKPOINT_OBJECT_S3_REPLY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {

// The longest reply that is read. A page of a listing has 1000 keys of at most 1 KiB.
inline constexpr int64_t kMaxReplyBytes = int64_t{4} << 20;

// All functions return kDataLoss, with the reason, for anything but such a reply; the caller adds its origin.

// ListObjectsV2. Every key and folder begins with `prefix`.
struct ListPage {
  ObjectListing listing;
  std::string next_token;  // of the next page; empty on the last
};
absl::StatusOr<ListPage> ParseListPage(absl::string_view xml, absl::string_view prefix);

// ListMultipartUploads. Every key begins with `prefix`.
struct UploadsPage {
  struct Upload {
    std::string key;
    std::string id;
  };
  std::vector<Upload> uploads;
  bool is_truncated = false;
};
absl::StatusOr<UploadsPage> ParseUploadsPage(absl::string_view xml, absl::string_view prefix);

// CreateMultipartUpload: the id, which goes into URLs.
absl::StatusOr<std::string> ParseUploadId(absl::string_view xml);

// An error, which S3 may also send with HTTP status 200 after a long operation (CompleteMultipartUpload).
struct S3Error {
  std::string code;     // "NoSuchBucket"; empty if `xml` is not an error
  std::string message;  // of S3, for people
  std::string region;   // the region of the bucket, if S3 reports it
};
S3Error ParseError(absl::string_view xml);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_S3_REPLY_H_
