// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_driver.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_plan.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_source.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_split.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_writer.h"
#include "fsdp/checkpoint/source/model_only.h"
#include "fsdp/checkpoint/source/safetensors_metadata.h"
#include "fsdp/checkpoint/source/source_description.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(GgufTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return absl::StartsWith(probe.head, "GGUF");
    FSDP_ASSIGN_OR_RETURN(const std::string file, GgufFileIn(probe.path));
    return !file.empty();
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenGgufSource(path, options);
  }

  // Names the tensors that would be left out, whether or not options allow that, and the files of which all tensors are
  // quantized, which have no places.
  absl::StatusOr<SourceDescription> Describe(const std::string& path,
                                             const TensorSourceOptions& options) const override {
    TensorSourceOptions described = options;
    described.skip_links = true;
    FSDP_ASSIGN_OR_RETURN(SourceDescription description, FormatDriver::Describe(path, described));
    for (const std::string& file : description.source->files()) {
      const std::string name = std::filesystem::path(file).filename();
      const bool is_there = std::any_of(description.files.begin(), description.files.end(),
                                        [&](const DescribedFile& known) { return known.name == name; });
      std::error_code ignored;
      if (!is_there) {
        description.files.push_back({name, static_cast<int64_t>(std::filesystem::file_size(file, ignored)), file});
      }
    }
    return description;
  }

  bool ReadsFileName(const std::string& name) const override { return HasSuffix(name); }
};

// The plan is made twice, for the notes and for the file: it reads only names, shapes and the template's header.
class Writer final : public FormatWriter {
 public:
  explicit Writer(const GgufTarget& target) : options_{target.template_path, target.keys_path, target.type} {}

  bool MakesDirectory(const std::string&) const override { return false; }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    const StateDict& origin = contents.origin == nullptr ? contents.state : *contents.origin;
    FSDP_ASSIGN_OR_RETURN(contents.metadata, SafetensorsMetadata(contents.metadata, origin));
    // The tensors of a PyTorch file without metadata say nothing.
    if (contents.metadata == std::map<std::string, std::string>{{"format", "pt"}}) contents.metadata.clear();
    FSDP_ASSIGN_OR_RETURN(std::vector<std::string> notes, FitModelOnly(GgufTraits(), contents));
    FSDP_ASSIGN_OR_RETURN(const GgufPlan plan, GgufPlan::Create(options_, contents.state, contents.metadata));
    notes.insert(notes.end(), plan.notes().begin(), plan.notes().end());
    return notes;
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    FSDP_ASSIGN_OR_RETURN(const GgufPlan plan, GgufPlan::Create(options_, contents.state, contents.metadata));
    return WriteGguf(destination, plan, read, options);
  }

 private:
  const GgufPlanOptions options_;
};

}  // namespace

const FormatDriver& GgufDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

absl::Status CheckGgufType(std::string_view name) { return ParseGgufType(name).status(); }

std::unique_ptr<FormatWriter> WriterFor(const GgufTarget& target) { return std::make_unique<Writer>(target); }

}  // namespace fsdp
