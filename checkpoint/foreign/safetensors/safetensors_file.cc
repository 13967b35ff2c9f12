// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/nearby_reads.h"

namespace fsdp {
namespace {

constexpr int64_t kLengthBytes = 8;  // the number N at the beginning of the file

absl::Span<std::byte> Bytes(void* data, int64_t nbytes) {
  return absl::MakeSpan(static_cast<std::byte*>(data), static_cast<size_t>(nbytes));
}

uint64_t LittleEndian(const unsigned char (&bytes)[kLengthBytes]) {
  uint64_t value = 0;
  for (int i = 0; i < kLengthBytes; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, PosixFileSystem().Open(path));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(std::make_unique<NearbyReads>(std::move(opened))));
  const absl::Status status = file->ReadHeader();
  if (!status.ok()) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file->file_));
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(status.message(), " in ", path));
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  FSDP_ASSIGN_OR_RETURN(const int64_t file_bytes, file_->Size());
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(absl::StrCat("the file has ", file_bytes, " bytes, expected at least ", kLengthBytes,
                                            " for the length of a safetensors header"));
  }
  unsigned char length[kLengthBytes];
  FSDP_RETURN_IF_ERROR(file_->Read(0, Bytes(length, kLengthBytes)));
  // The first number of an unknown file: compared with the limit as an unsigned number, before it is used as a size.
  const uint64_t header_bytes = LittleEndian(length);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::DataLossError(absl::StrCat("the header length is ", header_bytes, ", more than safetensors' limit of ",
                                            kMaxSafetensorsHeaderBytes));
  }
  payload_offset_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (payload_offset_ > file_bytes) {
    return absl::DataLossError(absl::StrCat("the header ends at byte ", payload_offset_, ", but the file has ",
                                            file_bytes, " bytes: it is truncated"));
  }
  std::string json(header_bytes, '\0');
  FSDP_RETURN_IF_ERROR(file_->Read(kLengthBytes, Bytes(json.data(), static_cast<int64_t>(header_bytes))));
  // The payload must end with the file, so the header is checked against the rest of the file's size.
  FSDP_ASSIGN_OR_RETURN(header_, ParseSafetensorsHeader(json, file_bytes - payload_offset_));
  return absl::OkStatus();
}

// The format has no checksums. Two kinds of damage are noticed: a file that became shorter, and bools that are neither
// 0 nor 1, which a C++ bool must not be.
absl::Status SafetensorsFile::Read(const SafetensorsEntry& entry, const Interval& interval, void* out) const {
  const int64_t size = SizeOf(entry.dtype);
  // Cannot overflow: ParseSafetensorsHeader has proven that the entry is inside the file.
  const int64_t begin = payload_offset_ + entry.begin + interval.begin * size;
  const int64_t nbytes = interval.size() * size;
  absl::Status status = file_->Read(begin, Bytes(out, nbytes));
  if (status.ok() && entry.dtype == DType::kBool) status = CheckBoolBytes(out, interval);
  if (status.ok()) return status;
  return Annotate(
      status, absl::StrCat("tensor ", Quote(entry.name), ", bytes ", begin, " to ", begin + nbytes, " of ", path()));
}

}  // namespace fsdp
