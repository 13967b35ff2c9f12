// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/quote.h"

namespace fsdp {
namespace {

constexpr int64_t kLengthBytes = 8;  // of N

// Bytes [offset, offset + nbytes) of `fd` to `out`; false at the end of the file.
absl::StatusOr<bool> ReadFully(int fd, int64_t offset, int64_t nbytes, char* out) {
  while (nbytes > 0) {
    const ssize_t n = pread(fd, out, nbytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "read");
    if (n == 0) return false;
    offset += n;
    out += n;
    nbytes -= n;
  }
  return true;
}

absl::Status InFile(const absl::Status& status, const std::string& path) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " in ", path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not block
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path, fd));
  RETURN_IF_ERROR(InFile(file->ReadHeader(), path));
  return file;
}

SafetensorsFile::~SafetensorsFile() { close(fd_); }

absl::Status SafetensorsFile::ReadHeader() {
  struct stat info;
  if (fstat(fd_, &info) != 0) return absl::ErrnoToStatus(errno, "stat");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("not a regular file, expected safetensors");
  const int64_t file_bytes = info.st_size;
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(absl::StrCat("the file has ", file_bytes, " bytes, expected at least ", kLengthBytes,
                                            " for the length of a safetensors header"));
  }
  unsigned char length[kLengthBytes];
  ASSIGN_OR_RETURN(bool complete, ReadFully(fd_, 0, kLengthBytes, reinterpret_cast<char*>(length)));
  uint64_t header_bytes = 0;
  for (int i = 0; i < kLengthBytes; ++i) header_bytes |= static_cast<uint64_t>(length[i]) << (8 * i);
  if (complete && header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::DataLossError(absl::StrCat("the header length is ", header_bytes, ", more than safetensors' limit of ",
                                            kMaxSafetensorsHeaderBytes));
  }
  payload_offset_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (complete && payload_offset_ > file_bytes) {
    return absl::DataLossError(absl::StrCat("the header ends at byte ", payload_offset_, ", but the file has ",
                                            file_bytes, " bytes: it is truncated"));
  }
  std::string json(complete ? header_bytes : 0, '\0');
  if (complete) {
    ASSIGN_OR_RETURN(complete, ReadFully(fd_, kLengthBytes, static_cast<int64_t>(header_bytes), json.data()));
  }
  if (!complete) return absl::DataLossError("the file became shorter while it was read");
  ASSIGN_OR_RETURN(header_, ParseSafetensorsHeader(json, file_bytes - payload_offset_));
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Read(const SafetensorsEntry& entry, const Interval& interval, void* out) const {
  const int64_t size = SizeOf(entry.dtype);
  const int64_t begin = payload_offset_ + entry.begin + interval.begin * size;
  const int64_t nbytes = interval.size() * size;
  char* const bytes = static_cast<char*>(out);
  const auto error = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("tensor ", Quote(entry.name), ", bytes ", begin, " to ",
                                                    begin + nbytes, " of ", path_, ": ", status.message()));
  };
  absl::StatusOr<bool> complete = ReadFully(fd_, begin, nbytes, bytes);
  if (!complete.ok()) return error(complete.status());
  if (!*complete) return error(absl::DataLossError("the file became shorter since it was opened"));
  if (entry.dtype == DType::kBool) {
    const char* const wrong = std::find_if(bytes, bytes + nbytes, [](unsigned char b) { return b > 1; });
    if (wrong != bytes + nbytes) {
      return error(absl::DataLossError(absl::StrCat("element ", interval.begin + (wrong - bytes), " is ",
                                                    static_cast<int>(static_cast<unsigned char>(*wrong)),
                                                    ", expected 0 or 1 in a bool tensor")));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
