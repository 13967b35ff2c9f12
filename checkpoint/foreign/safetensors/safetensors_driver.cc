// SPDX-License-Identifier: Apache-2.0
//
// A safetensors file starts with eight bytes for the length of its header, followed by the header, which is JSON: byte
// 8 is '{' or white space. Eight bytes of length can also be the start of a pickle ("\x80\x02...") or, in theory, of a
// zip archive; both are distinguished here and in torch_driver.cc: "PK\3\4" is always an archive, and a pickle is not
// such a length. A file with the suffix .safetensors that has neither start is also opened as safetensors, so that the
// error states which rule of the format it breaks.
#include "fsdp/checkpoint/foreign/safetensors/safetensors_driver.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_writer.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/source/byte_total.h"
#include "fsdp/checkpoint/source/model_only.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/source/source_description.h"

namespace fsdp {
namespace {

// Adds a file and its tensors, each of which is wholly inside it.
void AddFile(const SafetensorsFile& file, SourceDescription& description) {
  description.metadata.insert(file.header().metadata.begin(), file.header().metadata.end());
  const int index = static_cast<int>(description.files.size());
  DescribedFile& stored = description.files.emplace_back();
  stored.name = std::filesystem::path(file.path()).filename();
  stored.nbytes = file.payload_offset();
  for (const SafetensorsEntry& entry : file.header().entries) {
    StoredTensor& tensor = description.tensors.emplace_back();
    tensor.key = StateKey::Model(entry.name);
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.intervals = {{{0, entry.shape.numel()}, index, file.payload_offset() + entry.begin}};
    // Entries are in the order of the payload, so the last one's end is the file's size.
    stored.nbytes = file.payload_offset() + entry.end;
  }
}

void AddAliases(const std::map<std::string, std::string>& aliases, SourceDescription& description) {
  if (aliases.empty()) return;
  std::map<std::string_view, std::vector<std::string>> by_name;
  for (const auto& [alias, name] : aliases) by_name[name].push_back(alias);
  for (StoredTensor& tensor : description.tensors) {
    if (const auto at = by_name.find(tensor.key.fqn); at != by_name.end()) tensor.aliases = at->second;
  }
}

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(SafetensorsTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (probe.is_directory) return IsHuggingFaceDirectory(probe.path);
    if (absl::StartsWith(probe.head, "PK\x03\x04") || absl::StartsWith(probe.head, "GGUF")) return false;
    if (IsSafetensorsHead(probe.head)) return true;
    const bool is_pickle = probe.head.size() > 1 && probe.head[0] == '\x80' && probe.head[1] <= 5;
    return HasSuffix(probe.path) && !is_pickle && !absl::StartsWith(probe.head, "\x89HDF\r\n\x1a\n");
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions&) const override {
    return OpenSafetensorsSource(path);
  }

  // Only the headers are needed, and this works for files without a tensor as well.
  absl::StatusOr<SourceDescription> Describe(const std::string& path,
                                             const TensorSourceOptions& options) const override {
    FSDP_ASSIGN_OR_RETURN(const bool is_of_shards, IsOfShards(path));
    if (is_of_shards) return FormatDriver::Describe(path, options);
    SourceDescription description;
    FSDP_ASSIGN_OR_RETURN(const auto files, OpenSafetensorsFiles(path));
    for (const std::unique_ptr<SafetensorsFile>& file : files) AddFile(*file, description);
    ByteTotal total;
    for (const StoredTensor& tensor : description.tensors) {
      const absl::Status fits = total.Add(tensor.key, tensor.dtype, tensor.shape);
      if (!fits.ok()) return Annotate(fits, path);
    }
    description.left_out = SafetensorsBeside(path, files);
    SafetensorsFacts facts = FactsOf(path, files);
    description.step = facts.step;
    description.layout.notes = std::move(facts.notes);
    if (!facts.tied.first.empty()) facts.aliases.insert(std::move(facts.tied));
    AddAliases(facts.aliases, description);
    return description;
  }

  // A model in several files, or one with its config, as transformers saves it. model.safetensors without a config is
  // treated as a file in an ordinary directory.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    FSDP_ASSIGN_OR_RETURN(const bool has_index, HasEntry(directory, kHuggingFaceIndexName));
    if (has_index) return true;
    FSDP_ASSIGN_OR_RETURN(const bool has_model, HasEntry(directory, kHuggingFaceModelName));
    return has_model ? HasEntry(directory, kHuggingFaceConfigName) : false;
  }

  bool OwnsFileName(const std::string& name) const override {
    return name == kHuggingFaceModelName || name == kHuggingFaceIndexName ||
           (absl::StartsWith(name, "model-") && absl::EndsWith(name, ".safetensors"));
  }

  bool ReadsFileName(const std::string& name) const override {
    return absl::EndsWith(name, ".safetensors") || name == kHuggingFaceIndexName || name == kHuggingFaceConfigName;
  }
};

class Writer final : public FormatWriter {
 public:
  explicit Writer(const SafetensorsTarget& target) : target_(target) {}

  bool MakesDirectory(const std::string& destination) const override {
    return !SafetensorsDriver().HasSuffix(destination);
  }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    if (target_.max_shard_size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_shard_size is ", target_.max_shard_size, ", expected at least 1 byte"));
    }
    const StateDict& origin = contents.origin == nullptr ? contents.state : *contents.origin;
    // Taken from the source's state, because filters and model_only drop the extra text that stores the metadata.
    FSDP_ASSIGN_OR_RETURN(contents.metadata, SafetensorsMetadata(contents.metadata, origin));
    return FitModelOnly(SafetensorsTraits(), contents);
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    const SafetensorsOptions write = {.metadata = contents.metadata,
                                      .overwrite = options.overwrite,
                                      .file_system = options.file_system,
                                      .buffer_bytes = options.buffer_bytes,
                                      .io_threads = options.io_threads,
                                      .progress = options.progress};
    if (!MakesDirectory(destination)) return WriteSafetensors(destination, contents.state, read, write);
    return WriteHuggingFaceDirectory(destination, contents.state, read,
                                     {write, target_.max_shard_size, target_.carried});
  }

 private:
  const SafetensorsTarget target_;
};

}  // namespace

const FormatDriver& SafetensorsDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const SafetensorsTarget& target) { return std::make_unique<Writer>(target); }

}  // namespace fsdp
