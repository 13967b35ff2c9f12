// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_driver.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_source.h"
#include "fsdp/checkpoint/foreign/hdf5/root_links.h"
#include "fsdp/checkpoint/source/source_description.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(Hdf5FileTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    return absl::StartsWith(probe.head, "\x89HDF\r\n\x1a\n") && !IsKerasHdf5(probe);
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenHdf5FileSource(path, options);
  }

  // The listing already bounds and checks everything, so the description does not depend on the options.
  absl::StatusOr<SourceDescription> Describe(const std::string& path, const TensorSourceOptions&) const override {
    return DescribeHdf5File(path);
  }
};

}  // namespace

const FormatDriver& Hdf5FileDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
