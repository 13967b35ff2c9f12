// SPDX-License-Identifier: Apache-2.0
//
// ByteFile: a string as a File, for tests and fuzz targets that read thousands of damaged files without writing one.
// Owns the string; read-only; thread-safe. Reading beyond the end is kDataLoss, as for a truncated file.
#ifndef FSDP_CHECKPOINT_FOREIGN_ZIP_BYTE_FILE_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_ZIP_BYTE_FILE_TESTUTIL_H_

#include <cstring>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// Calls that write return kPermissionDenied, and NewWriteQueue returns null, so it can only be passed to code that
// reads.
class ByteFile final : public File {
 public:
  explicit ByteFile(std::string bytes) : bytes_(std::move(bytes)) {}

  // Always "bytes", the file's name in messages.
  const std::string& path() const override { return path_; }

  absl::StatusOr<int64_t> Size() const override { return static_cast<int64_t>(bytes_.size()); }

  // Fills all of `out` or none of it. An empty `out` may begin at the end.
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    if (offset < 0 || offset > static_cast<int64_t>(bytes_.size()) || out.size() > bytes_.size() - offset) {
      return absl::DataLossError("read beyond the end");
    }
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return absl::OkStatus();
  }

  absl::Status Write(int64_t, absl::Span<const std::byte>) override { return ReadOnly(); }
  absl::Status Reserve(int64_t) override { return ReadOnly(); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int) override { return nullptr; }
  absl::Status Sync() override { return ReadOnly(); }
  bool locked() const override { return false; }

 private:
  static absl::Status ReadOnly() { return absl::PermissionDeniedError("a ByteFile is for reading"); }

  const std::string path_ = "bytes";
  const std::string bytes_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_BYTE_FILE_TESTUTIL_H_
