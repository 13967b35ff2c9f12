// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_driver.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_values.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_source.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(OrbaxTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (!probe.is_directory) return false;
    FSDP_ASSIGN_OR_RETURN(const OrbaxPath kind, OrbaxPathOf(probe.path));
    return kind != OrbaxPath::kNone;
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenOrbaxSource(path, options);
  }

  absl::StatusOr<std::string> Resolve(const std::string& path, std::vector<std::string>*) const override {
    return ResolveOrbaxPath(path);
  }

  // Names the arrays that would be left out, whether or not options allow that.
  absl::StatusOr<SourceDescription> Describe(const std::string& path,
                                             const TensorSourceOptions& options) const override {
    TensorSourceOptions described = options;
    described.skip_links = true;
    return FormatDriver::Describe(path, described);
  }

  bool ReadsFileName(const std::string& name) const override {
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  }

  // Also the directories of an item that have its arrays.
  absl::StatusOr<bool> IsCheckpointDirectory(const std::string& directory) const override {
    FSDP_ASSIGN_OR_RETURN(const bool has_name, HasName(directory));
    return has_name ? true : HasName(SplitPath(directory).directory);
  }

 private:
  static constexpr const char* kNames[] = {kOrbaxTreeName, kOrbaxStepName, kOcdbtManifestName};

  static absl::StatusOr<bool> HasName(const std::string& directory) {
    for (const char* const name : kNames) {
      FSDP_ASSIGN_OR_RETURN(const bool is_there, HasEntry(directory, name));
      if (is_there) return true;
    }
    return false;
  }
};

}  // namespace

const FormatDriver& OrbaxDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
