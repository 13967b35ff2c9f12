// SPDX-License-Identifier: Apache-2.0
//
// The JSON form of manifests and records, as docs/checkpoint_format.md specifies it. Decoders trust nothing: they
// compare the seal, then check every number, name and range, so the result can be used without further checks (except
// that intervals cover each tensor: see CheckCovered). Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_JSON_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"

namespace fsdp {

// The version of the format that this release writes; readers take any minor version of a major one that they know.
inline constexpr int kFormatMajor = 1;
inline constexpr int kFormatMinor = 0;

// SaveIdentity::producer of this release.
inline constexpr char kProducer[] = "fsdp 0.1.0";

// Larger manifests are not read: they would not fit in memory.
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// The sealed text of manifest.json.
std::string EncodeManifest(const Manifest& manifest);

// The sealed text of a record of exactly `nbytes` bytes, or of its natural length when `nbytes` is 0.
std::string EncodeRecord(const FileRecord& record, int64_t nbytes);

// The inverses. kDataLoss for a broken text, with the reason; kUnimplemented for a higher major version, naming the
// release that reads it. `text` is not named: the caller knows its origin.
absl::StatusOr<Manifest> DecodeManifest(std::string_view text);
absl::StatusOr<FileRecord> DecodeRecord(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_MANIFEST_JSON_H_
