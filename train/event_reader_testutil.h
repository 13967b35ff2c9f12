// SPDX-License-Identifier: Apache-2.0
//
// For tests: TensorBoard's event files, read by code that shares nothing with their writer, checksums included.
#ifndef FSDP_TRAIN_EVENT_READER_TESTUTIL_H_
#define FSDP_TRAIN_EVENT_READER_TESTUTIL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  bool is_start = false;                 // SessionLog::START
  std::map<std::string, float> scalars;  // by tag
  std::map<std::string, std::string> texts;
};

// The events in the bytes of a file. kDataLoss names the byte at which a record is torn or a checksum is wrong.
absl::StatusOr<std::vector<ReadEvent>> ReadEvents(const std::string& bytes);

// The event files of a directory, in TensorBoard's order, by name.
std::vector<std::string> EventFilesOf(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_TRAIN_EVENT_READER_TESTUTIL_H_
