// SPDX-License-Identifier: Apache-2.0
//
// The XML in which S3 answers, read strictly and in bounded memory: whatever answers at the endpoint is not trusted.
// Of XML there are elements, text, the five named entities and numbered ones, and a declaration: a document type, an
// entity of its own, CDATA or a processing instruction is refused. Pure.
#ifndef FSDP_CHECKPOINT_OBJECT_S3_REPLY_H_
#define FSDP_CHECKPOINT_OBJECT_S3_REPLY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {

// No longer reply is read. A page of a listing has 1000 keys of at most 1 KiB.
inline constexpr int64_t kMaxReplyBytes = int64_t{4} << 20;

// All return kDataLoss, saying what is wrong, for what is no such reply; the caller adds where it came from.

// ListObjectsV2. Every key and folder begins with `prefix`.
struct ListPage {
  ObjectListing listing;
  std::string next_token;  // of the next page; empty: this was the last
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

// An error, which S3 may also answer with HTTP status 200 where it took long (CompleteMultipartUpload).
struct S3Error {
  std::string code;     // "NoSuchBucket"; empty where `xml` is no error
  std::string message;  // of S3, for people
  std::string region;   // where the bucket is, if S3 says so
};
S3Error ParseError(absl::string_view xml);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_S3_REPLY_H_
