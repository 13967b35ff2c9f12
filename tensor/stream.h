// SPDX-License-Identifier: Apache-2.0
//
// Stream and Event: ordered asynchronous work, as in CUDA. Work put on one stream runs in order; work on two streams is
// ordered only by events. Collectives are stream work too, so there are no Work objects.
//
//   Event gathered = unshard_stream.Record();   // everything put on unshard_stream so far
//   compute_stream.Wait(gathered);              // what follows on compute_stream starts after it
//
// Errors are sticky: after the first failed piece of work the rest of the stream is skipped, streams that wait for its
// events fail likewise, and Synchronize returns that first error. A Stream is used by one thread at a time; an Event
// may be copied and waited for from anywhere.
#ifndef FSDP_TENSOR_STREAM_H_
#define FSDP_TENSOR_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace fsdp {

class Device;

// A point in a stream's work. An empty Event counts as reached.
class Event {
 public:
  // A device's side of an event; implemented by each device.
  class State {
   public:
    virtual ~State() = default;
    // Blocks the calling thread until the event is reached; returns the error of the stream up to it.
    virtual absl::Status Synchronize() = 0;
    // True once reached; never blocks.
    virtual bool Query() = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  absl::Status Synchronize() const { return state_ ? state_->Synchronize() : absl::OkStatus(); }
  // As the functions of State; an empty event is OK and reached.
  bool Query() const { return !state_ || state_->Query(); }
  // For devices, which look for their own kind of event.
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  virtual ~Stream() = default;  // waits for the work that was put on it

  virtual Device& device() const = 0;
  virtual std::string_view name() const = 0;

  // Runs `work` on a host thread in stream order. Returns immediately. Skipped after an error. On the host device every
  // kernel runs this way; on a GPU it is a host callback, in which no device call is allowed.
  virtual void Run(std::function<absl::Status()> work) = 0;

  // As Run, but called after an error as well, with that error; the status it returns becomes the stream's error if the
  // stream did not have one. For work whose absence others would wait for, such as a collective.
  virtual void RunAlways(std::function<absl::Status(const absl::Status& so_far)> work) = 0;

  // Copies bytes in stream order. The memory may be on this device or the host and must live until the copy ran. Ranges
  // must not overlap. Skipped after an error.
  virtual void CopyAsync(void* destination, const void* source, int64_t nbytes) = 0;

  // An event reached when all work put on this stream so far has run, or been skipped after an error.
  virtual Event Record() = 0;

  // Work put on this stream from now on waits for `event`, of any stream of any device of this process.
  virtual void Wait(const Event& event) = 0;

  // Blocks the calling thread until all work put on this stream so far has run; returns the first error, again at each
  // call.
  virtual absl::Status Synchronize() = 0;
};

// `status`, an error, with "stream \"name\": " before its message; its payloads are kept. For implementations of
// Stream.
absl::Status OnStream(const absl::Status& status, const std::string& name);

}  // namespace fsdp

#endif  // FSDP_TENSOR_STREAM_H_
