// SPDX-License-Identifier: Apache-2.0
//
// The optional interfaces of a device and a stream, found by dynamic_cast only here: callers use these functions.
#include "fsdp/tensor/work_graph.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<WorkGraph>> CaptureWork(Stream& stream, const std::function<absl::Status()>& work) {
  if (auto* device = dynamic_cast<GraphDevice*>(&stream.device())) return device->Capture(stream, work);
  return absl::UnimplementedError(absl::StrCat(stream.device().name(), ": work on stream \"",
                                               std::string(stream.name()),
                                               "\" cannot be captured: graphs of work are for CUDA devices"));
}

absl::StatusOr<std::unique_ptr<ReplayGate>> CreateReplayGate(Device& device) {
  if (auto* graphs = dynamic_cast<GraphDevice*>(&device)) return graphs->CreateGate();
  return absl::UnimplementedError(absl::StrCat(device.name(), " has no graphs of work: they are for CUDA devices"));
}

bool HasGraphs(const Device& device) { return dynamic_cast<const GraphDevice*>(&device) != nullptr; }

Event RecordForHost(Stream& stream) {
  auto* captured = dynamic_cast<GraphStream*>(&stream);
  return captured != nullptr ? captured->RecordForHost() : stream.Record();
}

bool IsCapturing(const Stream& stream) {
  const auto* captured = dynamic_cast<const GraphStream*>(&stream);
  return captured != nullptr && captured->capturing();
}

}  // namespace fsdp
