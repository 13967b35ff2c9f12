// SPDX-License-Identifier: Apache-2.0
//
// An .npz file is a zip archive, and so is a file of torch.save: the name of the first entry distinguishes them. For an
// archive without entries the file's own name decides. One array by itself (.npy) is not an archive.
#include "fsdp/checkpoint/foreign/npz/npz_driver.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "fsdp/checkpoint/foreign/npz/npy_header.h"
#include "fsdp/checkpoint/foreign/npz/npz_source.h"
#include "fsdp/checkpoint/foreign/npz/npz_writer.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/source/model_only.h"
#include "fsdp/checkpoint/source/source_description.h"

namespace fsdp {
namespace {

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(NpzTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (absl::StartsWith(probe.head, absl::string_view(kNpyMagic.data(), kNpyMagic.size()))) return true;
    if (FirstZipEntryEndsWith(probe.head, ".npy")) return true;
    const bool is_empty_archive = absl::StartsWith(probe.head, "PK\5\6") || absl::StartsWith(probe.head, "PK\6\6");
    return is_empty_archive && HasSuffix(probe.path);
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenNpzSource(path, options);
  }

  // Names the arrays that would be left out, whether or not options allow that.
  absl::StatusOr<SourceDescription> Describe(const std::string& path,
                                             const TensorSourceOptions& options) const override {
    TensorSourceOptions described = options;
    described.skip_links = true;
    return FormatDriver::Describe(path, described);
  }
};

class Writer final : public FormatWriter {
 public:
  bool MakesDirectory(const std::string&) const override { return false; }

  absl::StatusOr<std::vector<std::string>> Fit(FormatContents& contents) const override {
    return FitModelOnly(NpzTraits(), contents);
  }

  absl::Status Write(const std::string& destination, const FormatContents& contents, const PayloadReader& read,
                     const FormatWriteOptions& options) const override {
    return WriteNpz(destination, contents.state, read, options);
  }
};

}  // namespace

const FormatDriver& NpzDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

std::unique_ptr<FormatWriter> WriterFor(const NpzTarget&) { return std::make_unique<Writer>(); }

}  // namespace fsdp
