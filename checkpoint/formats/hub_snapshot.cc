// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/formats/hub_snapshot.h"

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

std::string HubSnapshotOf(const std::string& model) {
  constexpr int64_t kMaxRefBytes = 200;
  const std::string snapshots = JoinPath(model, "snapshots");
  const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), JoinPath(model, "refs/main"), kMaxRefBytes);
  const std::string newest = text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
  if (CheckFileName(newest).ok()) return JoinPath(snapshots, newest);
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(snapshots);
  return JoinPath(snapshots, names.ok() && !names->empty() ? names->front() : "REVISION");
}

}  // namespace fsdp
