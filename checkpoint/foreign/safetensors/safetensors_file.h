// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsFile: one safetensors file open for reading. Opening it reads and checks the header; payload is read by
// pread on demand. A mapping would cost more (page faults), and would kill the process with SIGBUS if the file were
// truncated while mapped. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_FILE_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

class SafetensorsFile {
 public:
  // kNotFound when the file does not exist; kDataLoss when it is not well-formed; kInvalidArgument when it holds a
  // dtype that this project does not support. Memory is bounded by the size of the header, which is bounded by
  // kMaxSafetensorsHeaderBytes.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const File& file() const { return *file_; }
  const SafetensorsHeader& header() const { return header_; }
  // The offset of the payload in the file; entries count from it.
  int64_t payload_offset() const { return payload_offset_; }

  // Elements `interval` of `entry`, one of header().entries, to `out`. kDataLoss when the file has become shorter, or
  // when a bool is neither 0 nor 1. Precondition: the interval is inside the tensor.
  absl::Status Read(const SafetensorsEntry& entry, const Interval& interval, void* out) const;

 private:
  explicit SafetensorsFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  // Sets payload_offset_ and header_.
  absl::Status ReadHeader();

  const std::unique_ptr<File> file_;
  int64_t payload_offset_ = 0;
  SafetensorsHeader header_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_FILE_H_
