// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_driver.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_source.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_split.h"
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
        description.files.push_back({name, static_cast<int64_t>(std::filesystem::file_size(file, ignored))});
      }
    }
    return description;
  }

  bool ReadsFileName(const std::string& name) const override { return HasSuffix(name); }
};

}  // namespace

const FormatDriver& GgufDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
