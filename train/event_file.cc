// SPDX-License-Identifier: Apache-2.0
//
// A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h), numbers little-endian:
//
//   uint64 length | uint32 masked CRC-32C of the length | the bytes of an Event | uint32 masked CRC-32C of the bytes
//
// An Event is a protocol buffer of tensorflow/core/util/event.proto. Of it and of tensorflow/core/framework/
// {summary,tensor,tensor_shape}.proto a run needs the few fields below, whose wire types the encoder here supports, so
// that neither TensorFlow nor a protocol compiler is needed:
//
//   Event               double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//                       SessionLog session_log = 7
//   SessionLog          enum status = 1 (START: 1)
//   Summary             repeated Value value = 1
//   Summary.Value       string tag = 1; float simple_value = 2; TensorProto tensor = 8; SummaryMetadata metadata = 9
//   SummaryMetadata     PluginData plugin_data = 1; enum data_class = 4 (TENSOR: 2)
//   PluginData          string plugin_name = 1
//   TensorProto         enum dtype = 1 (DT_STRING: 7); TensorShapeProto tensor_shape = 2; repeated bytes string_val = 8
//   TensorShapeProto    repeated Dim dim = 2; Dim: int64 size = 1
#include "fsdp/train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The version for which readers drop later steps at a START event.
constexpr std::string_view kFileVersion = "brain.Event:2";

static_assert(std::endian::native == std::endian::little);

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// A field is its number and wire type in one varint, then the value: 0 a varint, 1 eight bytes, 2 a length and bytes,
// 5 four bytes.
std::string Key(int field, int wire_type) { return Varint(static_cast<uint64_t>(field) << 3 | wire_type); }
std::string Integer(int field, int64_t value) { return Key(field, 0) + Varint(static_cast<uint64_t>(value)); }
std::string Double(int field, double value) { return Key(field, 1) + LittleEndian(value); }
std::string Float(int field, float value) { return Key(field, 5) + LittleEndian(value); }
std::string Bytes(int field, std::string_view value) {
  return absl::StrCat(Key(field, 2), Varint(value.size()), absl::string_view(value.data(), value.size()));
}

std::string Scalar(const EventScalar& scalar) {
  return Bytes(1, absl::StrCat(Bytes(1, scalar.tag), Float(2, scalar.value)));
}

// A vector of one string, which the plugin "text" shows.
std::string Text(std::string_view tag, std::string_view text) {
  const std::string shape = Bytes(2, Integer(1, 1));
  const std::string tensor = absl::StrCat(Integer(1, 7), Bytes(2, shape), Bytes(8, text));
  const std::string metadata = absl::StrCat(Bytes(1, Bytes(1, "text")), Integer(4, 2));
  return Bytes(1, absl::StrCat(Bytes(1, tag), Bytes(8, tensor), Bytes(9, metadata)));
}

// Without the mask, the checksum of bytes that contain their own checksum would be constant.
uint32_t Masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

std::string Record(std::string_view data) {
  const std::string length = LittleEndian<uint64_t>(data.size());
  return absl::StrCat(length, LittleEndian(Masked(Crc32c(length))), absl::string_view(data.data(), data.size()),
                      LittleEndian(Masked(Crc32c(data))));
}

absl::Status FileError(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: cannot %s: %s", path, what, std::strerror(errno)));
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

// A new name each time: an existing file belongs to an earlier run, perhaps of the same second.
absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(const std::string& directory, int64_t start_step) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be made: %s", directory, error.message()));
  }
  const std::string stem = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d", directory,
                                           absl::ToUnixSeconds(absl::Now()), HostName(), getpid());
  std::string path;
  int fd = -1;
  for (int number = 0; fd < 0; ++number) {
    path = absl::StrCat(stem, ".", number);
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) return FileError(path, "make it");
  }
  std::unique_ptr<EventFile> file(new EventFile(fd, path));
  // Readers expect the version in the first event.
  FSDP_RETURN_IF_ERROR(file->WriteEvent(0, Bytes(3, kFileVersion)));
  FSDP_RETURN_IF_ERROR(file->WriteEvent(start_step, Bytes(7, Integer(1, 1))));
  return file;
}

EventFile::~EventFile() { close(fd_); }

absl::Status EventFile::WriteScalars(int64_t step, const std::vector<EventScalar>& scalars) {
  std::string summary;
  for (const EventScalar& scalar : scalars) absl::StrAppend(&summary, Scalar(scalar));
  return WriteEvent(step, Bytes(5, summary));
}

absl::Status EventFile::WriteText(int64_t step, std::string_view tag, std::string_view text) {
  return WriteEvent(step, Bytes(5, Text(tag, text)));
}

// A reader ignores a record that is not complete yet; a short write is continued.
absl::Status EventFile::WriteEvent(int64_t step, std::string_view rest) {
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const std::string record =
      Record(absl::StrCat(Double(1, now), Integer(2, step), absl::string_view(rest.data(), rest.size())));
  std::string_view left = record;
  while (!left.empty()) {
    const ssize_t written = write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path_, "write");
    left.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
