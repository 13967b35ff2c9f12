// SPDX-License-Identifier: Apache-2.0
//
// An argparse.Namespace is an object of no interest elsewhere, so that the reader of torch files drops what is in it.
// Here the pickle is parsed once more, with its state.
#include "fsdp/checkpoint/foreign/megatron/rank_arguments.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/zip/file_slice.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {
namespace {

constexpr char kNamespace[] = "argparse.Namespace";
constexpr int64_t kMaxPickleBytes = int64_t{64} << 20;

bool IsAllowed(std::string_view name) { return name == kNamespace || TorchPickleOptions().is_allowed(name); }

// The value of a text key; the last one, as in Python.
std::optional<PickleValue> MemberOf(PickleValue dict, std::string_view key) {
  if (!dict.is(PickleKind::kDict)) return std::nullopt;
  for (int64_t i = dict.size() - 1; i >= 0; --i) {
    if (dict.member(i).first.is_string(key)) return dict.member(i).second;
  }
  return std::nullopt;
}

std::optional<int64_t> NumberOf(PickleValue arguments, std::string_view name) {
  const std::optional<PickleValue> value = MemberOf(arguments, name);
  if (!value || !value->is(PickleKind::kInt) || value->integer() < 1) return std::nullopt;
  return value->integer();
}

absl::StatusOr<std::string> ReadPickle(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  FSDP_ASSIGN_OR_RETURN(const FileSlice archive, FileSlice::Whole(*file));
  FSDP_ASSIGN_OR_RETURN(const ZipDirectory directory, ZipDirectory::Read(archive));
  for (size_t i = 0; i < directory.size(); ++i) {
    const std::string_view name = directory.name(i);
    if (!absl::EndsWith(absl::string_view(name.data(), name.size()), "/data.pkl")) continue;
    const ZipEntry entry = directory[i];
    if (!entry.is_stored() || entry.nbytes > kMaxPickleBytes) break;
    return archive.ReadText(entry.payload_offset, entry.nbytes);
  }
  return absl::NotFoundError("no pickle of torch.save");
}

absl::Status Missing(const char* kind, int64_t stated, int found) {
  return absl::DataLossError(absl::StrCat("its args say ", kind, "_model_parallel_size ", stated, ", but there are ",
                                          "directories of ", found, ": those of the other ", kind,
                                          " parallel ranks are missing"));
}

}  // namespace

RankArguments ReadRankArguments(const std::string& path) {
  RankArguments arguments;
  const absl::StatusOr<std::string> bytes = ReadPickle(path);
  if (!bytes.ok()) return arguments;
  PickleOptions options = TorchPickleOptions();
  options.is_allowed = IsAllowed;
  const absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(*bytes, options);
  if (!pickle.ok()) return arguments;
  std::optional<PickleValue> args = MemberOf((*pickle)->root(), "args");
  if (args && args->is_call(kNamespace) && args->has_state()) args = args->state();
  if (!args) return arguments;
  arguments.tensor = NumberOf(*args, "tensor_model_parallel_size");
  arguments.pipeline = NumberOf(*args, "pipeline_model_parallel_size");
  arguments.expert = NumberOf(*args, "expert_model_parallel_size");
  return arguments;
}

absl::Status CheckHasAllRanks(const RankArguments& arguments, int tensor, int pipeline, int expert) {
  if (arguments.tensor.value_or(0) > tensor) return Missing("tensor", *arguments.tensor, tensor);
  if (arguments.pipeline.value_or(0) > pipeline) return Missing("pipeline", *arguments.pipeline, pipeline);
  if (arguments.expert.value_or(0) > expert) return Missing("expert", *arguments.expert, expert);
  return absl::OkStatus();
}

}  // namespace fsdp
