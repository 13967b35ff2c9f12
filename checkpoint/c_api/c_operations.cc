// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/c_api/c_status.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/verify_source.h"
#include "fsdp/checkpoint/native/verify/verify.h"

namespace fsdp {
namespace {

constexpr int kDefaultThreads = 2;
constexpr int kMostThreads = 1024;

// Options that only ckpt has are called as it calls them.
constexpr OptionNames kConvertNames = {{"ConvertOptions::force", "options->force"},
                                       {"ConvertOptions::map", "options->map"},
                                       {"ConvertOptions::model_only", "options->model_only"},
                                       {"ConvertOptions::dtype", "options->dtype"},
                                       {"ConvertOptions::", "ckpt convert --"}};
constexpr OptionNames kVerifyNames = {{"TensorSourceOptions::map", "options->map"},
                                      {"TensorSourceOptions::model_only", "ckpt convert --model_only"},
                                      {"TensorSourceOptions::", "ckpt verify --"}};
constexpr OptionNames kDiffNames = {{"TensorSourceOptions::map", "options->map"},
                                    {"TensorSourceOptions::model_only", "options->model_only"},
                                    {"TensorSourceOptions::", "ckpt diff --"},
                                    {"DiffOptions::", "ckpt diff --"}};

absl::StatusOr<FormatTarget> TargetOf(const std::string& destination, const fsdp_convert_options& options) {
  FormatTarget target = DefaultTarget(destination);
  if (options.to != nullptr) {
    const std::optional<FormatTarget> named = FindTarget(options.to);
    if (!named) {
      return absl::InvalidArgumentError(absl::StrCat("options->to is \"", options.to, "\", wanted ", TargetNames()));
    }
    target = *named;
  }
  if (options.kind < FSDP_FULL || options.kind > FSDP_SHARDED) {
    return absl::InvalidArgumentError(absl::StrCat("options->kind: ", options.kind, " is not an fsdp_kind"));
  }
  auto* const ours = std::get_if<Hdf5Target>(&target);
  if (ours == nullptr) {
    if (options.kind == FSDP_FULL && options.world_size == 0 && options.parity == 0) return target;
    return absl::InvalidArgumentError("options: kind, world_size and parity are for hdf5");
  }
  ours->type = static_cast<StateDictType>(options.kind);
  if (options.world_size != 0) ours->world_size = options.world_size;
  ours->parity = options.parity;
  return target;
}

absl::StatusOr<ConvertReport> Convert(const char* source, const char* destination, const fsdp_convert_options* given) {
  FSDP_RETURN_IF_ERROR(CheckPointer(source, "source"));
  FSDP_RETURN_IF_ERROR(CheckPointer(destination, "destination"));
  // A copy, completed with defaults: the caller's struct may be shorter, from an older header.
  fsdp_convert_options options = {};
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "options", options));
  ConvertOptions convert;
  FSDP_ASSIGN_OR_RETURN(convert.target, TargetOf(destination, options));
  if (options.dtype_given != 0) {
    if (fsdp_dtype_size(options.dtype) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("options->dtype: ", options.dtype, " is not an fsdp_dtype"));
    }
    convert.dtype = static_cast<DType>(options.dtype);
  }
  convert.model_only = options.model_only != 0;
  convert.force = options.force != 0;
  FSDP_ASSIGN_OR_RETURN(convert.map, RolesOf(options.map));
  return ConvertCheckpoint(source, destination, convert);
}

absl::StatusOr<VerifyReport> Verify(const char* path, const fsdp_verify_options* given) {
  FSDP_RETURN_IF_ERROR(CheckPointer(path, "path"));
  fsdp_verify_options options = {};
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "options", options));
  if (options.threads < 0 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->threads is ", options.threads, ", wanted 0 to ", kMostThreads));
  }
  VerifyOptions verify;
  verify.io_threads = options.threads == 0 ? kDefaultThreads : options.threads;
  TensorSourceOptions open;
  FSDP_ASSIGN_OR_RETURN(open.map, RolesOf(options.map));
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  FSDP_RETURN_IF_ERROR(driver->CheckApply(open));
  // Only our own format has a digest of every byte. Other formats, and the newest step of a ROOT, are verified by
  // reading all tensors.
  if (driver->traits().is_ours && !driver->traits().is_root) return VerifyCheckpoint(path, verify);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, OpenTensorSource(path, open));
  return VerifySource(*source, verify);
}

// A line of the report about a tensor that both checkpoints have.
std::string Sentence(const TensorDiff& tensor) {
  if (tensor.dtype_a != tensor.dtype_b || tensor.shape_a != tensor.shape_b) {
    return absl::StrCat(tensor.name, ": ", std::string(DTypeName(tensor.dtype_a)), " ", tensor.shape_a.ToString(),
                        " and ", std::string(DTypeName(tensor.dtype_b)), " ", tensor.shape_b.ToString());
  }
  return absl::StrCat(tensor.name, ": ", tensor.values.outside, " of ", tensor.values.numel,
                      " elements differ, the first is number ", tensor.values.first_changed, ", by at most ",
                      tensor.values.max_abs);
}

std::string TextOf(const DiffReport& report) {
  std::vector<std::string> lines = report.structure;
  for (const std::string& name : report.only_in_a) lines.push_back(absl::StrCat(name, ": only in a"));
  for (const std::string& name : report.only_in_b) lines.push_back(absl::StrCat(name, ": only in b"));
  for (const TensorDiff& tensor : report.tensors) {
    if (!tensor.equal()) lines.push_back(Sentence(tensor));
  }
  return absl::StrJoin(lines, "\n");
}

// One side of a comparison. Only one of the two may need roles, so a format without a layout is opened without them.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSide(const char* path, TensorSourceOptions options) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  if (!driver->traits().has_layout) options.map.clear();
  return OpenTensorSource(path, options);
}

absl::StatusOr<DiffReport> Diff(const char* a, const char* b, const fsdp_diff_options* given) {
  FSDP_RETURN_IF_ERROR(CheckPointer(a, "a"));
  FSDP_RETURN_IF_ERROR(CheckPointer(b, "b"));
  fsdp_diff_options options = {};
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "options", options));
  // Not >=: NaN is refused too.
  if (!(options.atol >= 0) || !(options.rtol >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->atol is ", options.atol, " and options->rtol is ", options.rtol, ", wanted at least 0"));
  }
  TensorSourceOptions open;
  open.model_only = options.model_only != 0;
  FSDP_ASSIGN_OR_RETURN(open.map, RolesOf(options.map));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source_a, OpenSide(a, open));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source_b, OpenSide(b, open));
  DiffOptions diff;
  diff.tolerance = {.atol = options.atol, .rtol = options.rtol};
  diff.model_only = open.model_only;
  // A report of a large model would otherwise name thousands of equal tensors.
  diff.list_equal = false;
  return DiffCheckpoints(*source_a, *source_b, diff);
}

}  // namespace
}  // namespace fsdp

int32_t fsdp_convert(const char* source, const char* destination, const fsdp_convert_options* options, char** report) {
  return fsdp::Guard([&]() -> absl::Status {
    const absl::StatusOr<fsdp::ConvertReport> made = fsdp::Convert(source, destination, options);
    if (!made.ok()) return fsdp::NameOptionsOfC(made.status(), fsdp::kConvertNames);
    return fsdp::GiveString(fsdp::NameOptionsOfC(absl::StrJoin(made->notes, "\n"), fsdp::kConvertNames), report);
  });
}

int32_t fsdp_verify(const char* path, const fsdp_verify_options* options, char** report) {
  // Set before anything can fail, so that the caller may always call fsdp_free.
  if (report != nullptr) *report = nullptr;
  return fsdp::Guard([&]() -> absl::Status {
    const absl::StatusOr<fsdp::VerifyReport> found = fsdp::Verify(path, options);
    if (!found.ok()) return fsdp::NameOptionsOfC(found.status(), fsdp::kVerifyNames);
    // The report is given for damage too, so it is set before the error is returned.
    FSDP_RETURN_IF_ERROR(fsdp::GiveString(absl::StrJoin(found->problems, "\n"), report));
    return found->status();
  });
}

int32_t fsdp_diff(const char* a, const char* b, const fsdp_diff_options* options, int32_t* equal, char** report) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(equal, "equal"));
    const absl::StatusOr<fsdp::DiffReport> found = fsdp::Diff(a, b, options);
    if (!found.ok()) return fsdp::NameOptionsOfC(found.status(), fsdp::kDiffNames);
    *equal = found->equal() ? 1 : 0;
    return fsdp::GiveString(fsdp::TextOf(*found), report);
  });
}
