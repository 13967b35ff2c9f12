// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSummary: the facts that ckpt inspect shows about a checkpoint of any format, as text or as JSON. It is
// metadata: of values only short texts are read.
#ifndef FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_
#define FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/native/checkpoint_driver.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/source/source_layout.h"

namespace fsdp {

// A tensor that was read only in part: its other elements may have values that the statistics do not show
// (ValueStatistics::unread).
struct NotWhollyRead {
  StateKey key;
  int64_t read = 0;    // elements
  int64_t unread = 0;  // elements
};

// Texts of this size are shown, a step, a learning rate, a position, unless they are very many.
inline constexpr int64_t kShortTextBytes = 256;
inline constexpr size_t kMostShortTexts = 1000;

struct CheckpointSummary {
  // The path that the user gave, and the checkpoint's path: a step, if the user gave a ROOT.
  std::string asked_for;
  std::string path;

  // Every value of `path`, the newest step of a ROOT of which that can be said, was read and verifies.
  bool is_verified = false;

  // Sentences about newer steps of the ROOT that are damaged.
  std::vector<std::string> skipped;

  // The driver that recognised `path`. Never null; drivers live as long as the program.
  const FormatDriver* format = &CheckpointDriver();

  // Damage visible without reading values, such as a missing file; empty if there is no damage.
  std::string problem;

  // Tensors, files, and which file holds which elements. Formats without a manifest fill in the parts that they have.
  Manifest manifest;

  // SourceDescription::files; empty for a checkpoint of ours.
  std::vector<DescribedFile> described_files = {};

  // The bytes of the tensors and the bytes that the files hold of them, if the two can differ: torch and DCP.
  Expansion expansion = {};

  // SourceDescription::source: if it is not null it has the tensors, and the manifest is empty before FillManifest.
  std::shared_ptr<const TensorSource> source = nullptr;

  // The "__metadata__" of a safetensors file.
  std::map<std::string, std::string> metadata;

  // TensorSource::left_out(): links of an HDF5 file, which are not followed.
  std::vector<std::string> left_out;

  // The first kMostShortTexts texts of at most kShortTextBytes, by key. Of a checkpoint of ours without the ones that
  // cannot be read, and none of an object store.
  std::map<StateKey, std::string> short_texts = {};

  // TensorSource::layout(); its text is empty for formats that do not need one.
  SourceLayout layout = {};

  // Filled if statistics were read (--html), in the order of the names.
  std::vector<NotWhollyRead> partly_read = {};

  const FormatTraits& traits() const { return format->traits(); }

  // Calls `use` for each tensor of the manifest or of `source`, in order, with the bytes that hold its elements.
  void ForEachTensor(const std::function<void(const StoredTensor& tensor, int64_t stored_bytes)>& use) const;

  // Puts the tensors of `source` into the manifest, for a page, which sorts them. Takes as much memory as the source.
  void FillManifest();
};

// Reads the metadata of the checkpoint at `path`, or of a step of a ROOT, and no values. `path` may be a URL of an
// object store ("s3://models/gpt2"), or of a run in it, whose newest step is then read. Errors are those from
// FindFormat and the format's reader, or from the store; kNotFound for a ROOT without such a step.
absl::StatusOr<CheckpointSummary> Summarise(const std::string& path);

// Takes a text piece by piece: with a line for each tensor it may be larger than everything else in memory.
using TextSink = std::function<void(const std::string& piece)>;

// As the checkpoint lists them; by name, "h.2" before "h.10"; or by bytes, the largest first. A sorted list is held in
// memory.
enum class TensorOrder { kAsListed, kByName, kBySize };

// Which tensors are listed: none, all, or those whose names, as they are shown ("model/wte.weight"), the filter keeps.
struct ListedTensors {
  bool is_wanted = false;
  NameFilter filter;
  TensorOrder order = TensorOrder::kAsListed;
};

// For people: a few lines, and one more for each tensor of the list. Control characters in names are escaped.
void SummaryText(const CheckpointSummary& summary, const ListedTensors& tensors, const TextSink& sink);

// For programs: one JSON object.
void SummaryJson(const CheckpointSummary& summary, const ListedTensors& tensors, const TextSink& sink);

// The JSON object that takes the place of SummaryJson after an error.
std::string ProblemJson(const std::string& path, const absl::Status& status);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CKPT_SUMMARY_H_
