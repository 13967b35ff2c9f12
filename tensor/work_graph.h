// SPDX-License-Identifier: Apache-2.0
//
// WorkGraph: stream work that was captured once, to be run again and again at the cost of one launch: a CUDA graph.
//
//   FSDP_ASSIGN_OR_RETURN(auto graph, CaptureWork(stream, [&] { return TrainStep(stream); }));   // runs nothing
//   for (...) {
//     stream.CopyAsync(tokens.data(), next_batch.data(), nbytes);    // new contents, always at the same address
//     graph->Replay();
//   }
//
// A replay repeats the captured work, on the same addresses, whatever the host's variables are by then. So the work
// must be the same each time: the same shapes and the same decisions of the host; values that differ are read from
// device memory. During the capture the host may not wait for the work, no host work (Stream::Run) may be put on the
// streams, and device memory that is allocated belongs to the graph: only `stream` may use it. Other streams take part
// from their first wait for an event of `stream` on. Events of work outside are waited for once, during the capture.
#ifndef FSDP_TENSOR_WORK_GRAPH_H_
#define FSDP_TENSOR_WORK_GRAPH_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class WorkGraph {
 public:
  virtual ~WorkGraph() = default;  // waits for the last replay

  // Puts the captured work once more on the stream that it was captured on. All streams of the capture behave as if the
  // work was put on them again: it runs after their work so far, and before any later work. An event that was recorded
  // during the capture then refers to the last replay. The streams and groups that took part must live.
  virtual void Replay() = 0;
};

// ReplayGate: a place in captured work at which each replay waits for an event of work outside of the graph, such as a
// copy that still reads what the rest of the graph overwrites. The work before the place does not wait.
//
//   FSDP_ASSIGN_OR_RETURN(auto gate, CreateReplayGate(device));
//   ...   compute(); gate->Pass(stream); overwrite();   ...   // captured
//   gate->CloseUntil(copied);
//   graph->Replay();
//
// Used by the thread that captures and replays; may be destroyed before the graph.
class ReplayGate {
 public:
  virtual ~ReplayGate() = default;

  // Later replays, and later calls of Pass outside of captures, wait for `event` in place of any before. An error of
  // the event's stream becomes the error of the replay's. Does not block.
  virtual void CloseUntil(const Event& event) = 0;

  // Puts the wait on `stream`, of the gate's device.
  virtual void Pass(Stream& stream) = 0;
};

// Optional interfaces, found by dynamic_cast: a Device that can capture work implements GraphDevice, and its streams
// GraphStream.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  // As CaptureWork, for a stream of this device.
  virtual absl::StatusOr<std::unique_ptr<WorkGraph>> Capture(Stream& stream,
                                                             const std::function<absl::Status()>& work) = 0;
  // As CreateReplayGate, for this device.
  virtual absl::StatusOr<std::unique_ptr<ReplayGate>> CreateGate() = 0;
};
class GraphStream {
 public:
  virtual ~GraphStream() = default;
  // True while work that is put on this stream is captured.
  virtual bool capturing() const = 0;
  // As the function RecordForHost, for this stream.
  virtual Event RecordForHost() = 0;
};

// True if work on streams of `device` can be captured at all.
bool HasGraphs(const Device& device);

// Calls `work`, and captures the work that it puts on `stream` and on streams that wait for it, instead of running it.
// Returns an error, with nothing captured, if `work` fails or does something that cannot be captured; kUnimplemented
// for a stream of a device that has no graphs, such as the host.
absl::StatusOr<std::unique_ptr<WorkGraph>> CaptureWork(Stream& stream, const std::function<absl::Status()>& work);

// kUnimplemented for a device that has no graphs; errors of Device::CreateStream.
absl::StatusOr<std::unique_ptr<ReplayGate>> CreateReplayGate(Device& device);

// True while work that is put on `stream` is captured and does not run: nothing may be waited for.
bool IsCapturing(const Stream& stream);

// As stream.Record(), for waits by the host: in a capture, each replay reaches the event at its place in the graph,
// before the work that was captured later, and not at the end of the graph. Other streams of the capture must not wait
// for it; streams outside wait for the whole replay.
Event RecordForHost(Stream& stream);

}  // namespace fsdp

#endif  // FSDP_TENSOR_WORK_GRAPH_H_
