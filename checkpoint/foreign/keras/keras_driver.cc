// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/keras/keras_driver.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "fsdp/checkpoint/foreign/hdf5/root_links.h"
#include "fsdp/checkpoint/foreign/keras/keras_source.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(KerasTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (absl::EndsWith(probe.path, kKerasIndexEnding)) return absl::StrContains(probe.head, "\"weight_map\"");
    return IsKerasHdf5(probe) || FirstZipEntryEndsWith(probe.head, "metadata.json");
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenKerasSource(path, options);
  }
};

}  // namespace

const FormatDriver& KerasDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
