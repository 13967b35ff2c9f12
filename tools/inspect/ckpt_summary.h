// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSummary: what inspect shows of a checkpoint, whatever its format, as text or as JSON.
#ifndef FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_
#define FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"

namespace fsdp {

struct CheckpointSummary {
  std::string asked_for;             // what the user named
  std::string path;                  // what was looked at: a step, when a ROOT was named
  std::vector<std::string> skipped;  // sentences about newer steps of the ROOT that do not verify
  std::string format;                // "hdf5", "hdf5 file", "safetensors", "torch", "dcp"
  std::string problem;               // what is damaged at first sight, such as a missing file; empty when nothing is

  // Tensors, files and who holds what; for safetensors only what that format has.
  Manifest manifest;
  std::map<std::string, std::string> metadata;  // safetensors' own
};

// Reads the metadata of what lies at `path`.
absl::StatusOr<CheckpointSummary> Summarise(const std::string& path);

// For people: a page, and with `tensors` a line for each tensor.
std::string SummaryText(const CheckpointSummary& summary, bool tensors);

// For programs: one JSON object.
std::string SummaryJson(const CheckpointSummary& summary, bool tensors);

// The JSON object for a path of which there is no summary.
std::string ProblemJson(const std::string& path, const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_
