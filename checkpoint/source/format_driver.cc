// SPDX-License-Identifier: Apache-2.0
//
// A path is probed once, before any driver sees it, so that a missing path and an unreadable file give one error, and
// recognition costs one read of kProbeBytes for any number of formats.
#include "fsdp/checkpoint/source/format_driver.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/byte_total.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

}  // namespace

absl::StatusOr<PathProbe> ProbePath(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  if (status.type() == fs::file_type::directory) return PathProbe{.path = path, .is_directory = true, .head = {}};
  if (error) return absl::ErrnoToStatus(error.value(), path);
  if (status.type() != fs::file_type::regular) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is neither a file nor a directory"));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  std::string head(std::min<int64_t>(size, kProbeBytes), '\0');
  FSDP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(head.data()), head.size())));
  return PathProbe{.path = path, .is_directory = false, .head = std::move(head)};
}

absl::StatusOr<bool> HasEntry(const std::string& directory, const std::string& name) {
  return IsThere(JoinPath(directory, name));
}

absl::StatusOr<SourceDescription> FormatDriver::Describe(const std::string& path,
                                                         const TensorSourceOptions& options) const {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> source, OpenChecked(path, options));
  return DescribeSource(std::move(source));
}

absl::StatusOr<std::unique_ptr<TensorSource>> FormatDriver::OpenChecked(const std::string& path,
                                                                        const TensorSourceOptions& options) const {
  FSDP_RETURN_IF_ERROR(CheckApply(options));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> source, Open(path, options));
  ByteTotal total;
  for (const auto& [key, value] : source->contents().entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const absl::Status fits = total.Add(key, tensor->dtype, tensor->shape);
    if (!fits.ok()) return Annotate(fits, path);
  }
  return source;
}

absl::Status FormatDriver::CheckApply(const TensorSourceOptions& options) const {
  if (options.keep_quantized && !traits_.has_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("TensorSourceOptions::keep_quantized is for GGUF: ", name(),
                                                   " does not have quantized types in blocks"));
  }
  if (options.map.empty() || traits_.has_layout) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "TensorSourceOptions::map is for torch files and DCP directories: the values of ", name(), " have their roles"));
}

bool FormatDriver::HasSuffix(const std::string& path) const {
  return std::any_of(traits_.suffixes.begin(), traits_.suffixes.end(), [&](std::string_view suffix) {
    return absl::EndsWith(path, {suffix.data(), suffix.size()});
  });
}

}  // namespace fsdp
