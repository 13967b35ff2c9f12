// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSummary: what ckpt inspect shows of a checkpoint of any format, as text or as JSON. It is metadata: no
// values are read.
#ifndef FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_
#define FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/formats/checkpoint_driver.h"
#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

struct CheckpointSummary {
  std::string asked_for;             // the path that the user gave
  std::string path;                  // the checkpoint: a step, if the user gave a ROOT
  std::vector<std::string> skipped;  // sentences about newer steps of the ROOT that do not verify
  const FormatDriver* format = &CheckpointDriver();
  std::string problem;  // damage that shows without reading, such as a missing file; empty: none

  // Tensors, files, and which file holds which elements. Formats without a manifest fill in what they know.
  Manifest manifest;
  std::map<std::string, std::string> metadata;  // safetensors' own

  const FormatTraits& traits() const { return format->traits(); }
};

// Reads the metadata of the checkpoint at `path`; of a ROOT, its newest step that verifies. Errors are those of
// RecognisePath, LatestCheckpoint and the format's reader.
absl::StatusOr<CheckpointSummary> Summarise(const std::string& path);

// For people: a few lines, and with `tensors` one more for each tensor.
std::string SummaryText(const CheckpointSummary& summary, bool tensors);

// For programs: one JSON object.
std::string SummaryJson(const CheckpointSummary& summary, bool tensors);

// The JSON object that takes the place of SummaryJson after an error.
std::string ProblemJson(const std::string& path, const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_
