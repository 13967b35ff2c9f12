// SPDX-License-Identifier: Apache-2.0
//
// EventFile: a run's data for TensorBoard: curves of scalars and remarks in text, each at a step. A run adds one file
// to a directory that may have others of the same run; TensorBoard reads them in the order of their names, which begin
// with the time. A run that continues from an earlier step records that first, and TensorBoard then drops the data for
// that step and later ones in the files before.
//
// The format is a sequence of records, each an Event (tensorflow/core/util/event.proto) between checksums.
#ifndef FSDP_TRAIN_EVENT_FILE_H_
#define FSDP_TRAIN_EVENT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// A point of the curve `tag`. Tags with the same text before a slash are shown together.
struct EventScalar {
  std::string tag;
  float value = 0;
};

// Used by one thread at a time.
class EventFile {
 public:
  // Makes `directory` if needed, and in it a new file whose first events are the version and the step at which the run
  // starts. kInvalidArgument, with the path and the system's reason, if that fails.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& directory, int64_t start_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Append an event, by one write, so that TensorBoard shows it while the run continues and after it was killed: points
  // of several curves at `step`, or a remark, Markdown that is shown under `tag`. kInvalidArgument, with the path and
  // the system's reason, if that fails.
  absl::Status WriteScalars(int64_t step, const std::vector<EventScalar>& scalars);
  absl::Status WriteText(int64_t step, std::string_view tag, std::string_view text);

  const std::string& path() const { return path_; }

 private:
  EventFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  // Appends an Event with the time of the call, `step`, and the fields in `rest`.
  absl::Status WriteEvent(int64_t step, std::string_view rest);

  const int fd_;
  const std::string path_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_EVENT_FILE_H_
