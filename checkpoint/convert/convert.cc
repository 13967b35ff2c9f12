// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/convert.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/convert_destination.h"
#include "fsdp/checkpoint/convert/convert_memory.h"
#include "fsdp/checkpoint/convert/convert_plan.h"
#include "fsdp/checkpoint/parity/parity_files.h"
#include "fsdp/checkpoint/safetensors/hugging_face_writer.h"
#include "fsdp/checkpoint/safetensors/safetensors_metadata.h"
#include "fsdp/checkpoint/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/torch/dcp/dcp_writer.h"
#include "fsdp/checkpoint/torch/pt/torch_writer.h"
#include "fsdp/tensor/convert.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

constexpr int64_t kDefaultMaxShardSize = int64_t{5} * 1000 * 1000 * 1000;

bool IsSafetensorsFile(const std::string& destination) { return absl::EndsWith(destination, ".safetensors"); }

bool IsTorchFile(const std::string& destination) {
  return absl::EndsWith(destination, ".pt") || absl::EndsWith(destination, ".pth") ||
         absl::EndsWith(destination, ".bin");
}

CheckpointFormat TargetFormat(const std::string& destination, const ConvertOptions& options) {
  if (options.to) return *options.to;
  if (IsSafetensorsFile(destination)) return CheckpointFormat::kSafetensors;
  return IsTorchFile(destination) ? CheckpointFormat::kTorch : CheckpointFormat::kHdf5;
}

bool IsTargetDirectory(const std::string& destination, const ConvertOptions& options) {
  const CheckpointFormat format = TargetFormat(destination, options);
  if (format == CheckpointFormat::kSafetensors) return !IsSafetensorsFile(destination);
  return format != CheckpointFormat::kTorch;
}

absl::Status CheckWorldSize(const ConvertOptions& options) {
  if (!options.world_size || (*options.world_size >= 1 && *options.world_size <= 99999)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--world_size=", *options.world_size, ", expected 1 to 99999"));
}

absl::Status CheckHdf5Options(const std::string& destination, const ConvertOptions& options) {
  const StateDictType type = options.state_dict_type.value_or(StateDictType::kFull);
  if (IsSafetensorsFile(destination)) {
    return absl::InvalidArgumentError(
        absl::StrCat(destination, " names a safetensors file, but --to=hdf5 makes a directory"));
  }
  if (options.world_size && type == StateDictType::kFull) {
    return absl::InvalidArgumentError(
        "--world_size is for --state_dict_type=sharded or local, and a full checkpoint, the default, has no rank "
        "files: add one of the two, or leave --world_size out");
  }
  FSDP_RETURN_IF_ERROR(CheckWorldSize(options));
  if (options.parity < 0 || (options.parity > 0 && type == StateDictType::kFull)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--parity=", options.parity, ", expected at least 0; it is for --state_dict_type=sharded or local,",
        " since a full checkpoint has no rank files"));
  }
  if (options.max_shard_size) {
    return absl::InvalidArgumentError("--max_shard_size is for a directory of safetensors files, not for --to=hdf5");
  }
  return absl::OkStatus();
}

absl::Status CheckSafetensorsOptions(const std::string& destination, const ConvertOptions& options) {
  if (options.world_size) {
    return absl::InvalidArgumentError(
        "--world_size is for --state_dict_type=sharded; safetensors files belong to no rank");
  }
  if (options.parity != 0) {
    return absl::InvalidArgumentError(
        "--parity is for --state_dict_type=sharded or local; safetensors has no rank files");
  }
  if (options.state_dict_type.value_or(StateDictType::kFull) != StateDictType::kFull) {
    return absl::InvalidArgumentError(
        absl::StrCat("--state_dict_type=", std::string(StateDictTypeName(*options.state_dict_type)),
                     " is for --to=hdf5; safetensors files hold whole tensors"));
  }
  if (options.max_shard_size && IsSafetensorsFile(destination)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_shard_size is for directories, and ", destination, " is one file"));
  }
  if (options.max_shard_size && *options.max_shard_size < 1) {
    return absl::InvalidArgumentError("--max_shard_size=0, expected at least 1 byte");
  }
  return absl::OkStatus();
}

// For a torch file and for a DCP directory.
absl::Status CheckTorchOptions(const std::string& destination, const ConvertOptions& options, CheckpointFormat format) {
  const char* const name = format == CheckpointFormat::kTorch ? "torch" : "dcp";
  if (IsSafetensorsFile(destination)) {
    return absl::InvalidArgumentError(absl::StrCat(destination, " names a safetensors file, but --to is ", name));
  }
  if (format == CheckpointFormat::kDcp && IsTorchFile(destination)) {
    return absl::InvalidArgumentError(absl::StrCat(destination, " names a torch file, but --to=dcp makes a directory"));
  }
  if (options.max_shard_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_shard_size is for a directory of safetensors files, not for --to=", name));
  }
  if (options.state_dict_type) {
    return absl::InvalidArgumentError(absl::StrCat("--state_dict_type is for --to=hdf5, not for --to=", name));
  }
  if (options.world_size && format == CheckpointFormat::kTorch) {
    return absl::InvalidArgumentError("--world_size is for checkpoints of many files; a torch file is one");
  }
  return CheckWorldSize(options);
}

// That a target which keeps __metadata__ can have it; names the source where not.
absl::Status CheckMetadata(const TensorSource& source, const std::string& path, CheckpointFormat format) {
  if (format != CheckpointFormat::kHdf5 && format != CheckpointFormat::kSafetensors) return absl::OkStatus();
  const absl::Status status = SafetensorsMetadata(source.metadata(), source.contents()).status();
  return Annotate(status, path);
}

// Reads tensors of the plan from the source, in the dtype of the target.
absl::Status ReadConverted(const TensorSource& source, const ConvertPlan& plan, const StateKey& key,
                           const Interval& interval, std::byte* out) {
  const StateKey& origin = plan.origins.at(key);
  const DType from = source.contents().FindTensor(origin)->dtype;
  const DType to = plan.contents.FindTensor(key)->dtype;
  if (from == to) return source.Read(origin, interval, out);
  std::vector<std::byte> scratch;
  for (const Interval& piece : source.Pieces(origin, interval)) {
    scratch.resize(piece.size() * SizeOf(from));
    FSDP_RETURN_IF_ERROR(source.Read(origin, piece, scratch.data()));
    FSDP_RETURN_IF_ERROR(
        Convert(from, scratch.data(), to, out + (piece.begin - interval.begin) * SizeOf(to), piece.size()));
  }
  return absl::OkStatus();
}

// Reads for the target, each element once. With the last one the source compares those checksums too that it could not
// yet, so that damage is known before the target appears.
class VerifiedReads {
 public:
  VerifiedReads(const TensorSource& source, const ConvertPlan& plan, CheckpointFormat format)
      : source_(source), plan_(plan) {
    for (const auto& [key, value] : plan.contents.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr || (format == CheckpointFormat::kSafetensors && key.section != Section::kModel)) continue;
      left_ += tensor->shape.numel();
    }
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) {
    FSDP_RETURN_IF_ERROR(ReadConverted(source_, plan_, key, interval, static_cast<std::byte*>(out)));
    if (left_.fetch_sub(interval.size()) != interval.size()) return absl::OkStatus();
    return source_.VerifyRest();
  }

 private:
  const TensorSource& source_;
  const ConvertPlan& plan_;
  std::atomic<int64_t> left_ = 0;  // elements that are still to be read
};

// Bytes of payload in the target's buffers; as much again may be in those of the source.
absl::StatusOr<int64_t> BufferBytes(const TensorSource& source, const ConvertPlan& plan, int target_ranks,
                                    const ConvertOptions& options) {
  const int source_ranks = source.format() == "hdf5" ? source.world_size() : 0;
  const int64_t parity = ParityMemory(target_ranks, options.parity, options.io_threads);
  FSDP_ASSIGN_OR_RETURN(const int64_t payload,
                        PayloadMemory(plan.contents, {source_ranks, target_ranks, parity}, options.max_memory));
  return payload / 4;
}

// "12 optimizer values and 3 extra values are left out: ..." where there are any, and the aliases.
std::vector<std::string> NotesOnSafetensors(const StateDict& contents) {
  int64_t optimizer = 0;
  int64_t extra = 0;
  for (const auto& [key, value] : contents.entries()) {
    if (key.section == Section::kOptimState || key.section == Section::kParamGroups) ++optimizer;
    if (key.section == Section::kExtra && key != SafetensorsMetadataKey()) ++extra;
  }
  std::vector<std::string> notes;
  const auto add = [&](int64_t count, const char* what) {
    if (count == 0) return;
    notes.push_back(absl::StrCat(count, what, count == 1 ? " value is" : " values are",
                                 " left out: safetensors holds the model only"));
  };
  add(optimizer, " optimizer");
  add(extra, " extra");
  for (const auto& [alias, target] : contents.aliases) {
    notes.push_back(absl::StrCat(Quote(alias), " is left out: it is ", Quote(target), " under another name"));
  }
  return notes;
}

absl::Status WriteToSafetensors(const TensorSource& source, const ConvertPlan& plan, const PayloadReader& read,
                                const std::string& destination, const ConvertOptions& options) {
  if (ModelEntries(plan.contents).empty() && !plan.contents.empty()) {
    return absl::InvalidArgumentError("the source holds no model tensor, and safetensors holds the model only");
  }
  HuggingFaceOptions write;
  write.max_shard_size = options.max_shard_size.value_or(kDefaultMaxShardSize);
  write.safetensors.overwrite = options.force;
  FSDP_ASSIGN_OR_RETURN(write.safetensors.buffer_bytes, BufferBytes(source, plan, 0, options));
  write.safetensors.io_threads = options.io_threads;
  write.safetensors.progress = options.progress;
  write.safetensors.file_system = options.file_system;
  FSDP_ASSIGN_OR_RETURN(write.safetensors.metadata, SafetensorsMetadata(source.metadata(), source.contents()));
  if (IsTargetDirectory(destination, options))
    return WriteHuggingFaceDirectory(destination, plan.contents, read, write);
  return WriteSafetensors(destination, plan.contents, read, write.safetensors);
}

absl::Status WriteToHdf5(const TensorSource& source, ConvertPlan& plan, const PayloadReader& read,
                         const std::string& destination, const ConvertOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const auto metadata, SafetensorsMetadata(source.metadata(), source.contents()));
  KeepSafetensorsMetadata(metadata, plan.contents);
  CheckpointDirectoryOptions write;
  write.type = options.state_dict_type.value_or(StateDictType::kFull);
  write.world_size = options.world_size.value_or(source.world_size());
  write.parity = options.parity;
  write.step = std::max<int64_t>(source.step(), 0);
  write.overwrite = options.force;
  const int target_ranks = write.type == StateDictType::kFull ? 1 : write.world_size;
  FSDP_ASSIGN_OR_RETURN(write.max_memory, BufferBytes(source, plan, target_ranks, options));
  write.io_threads = options.io_threads;
  write.progress = options.progress;
  write.file_system = options.file_system;
  plan.contents.type = write.type;
  return WriteCheckpointDirectory(destination, plan.contents, read, write);
}

absl::Status WriteToTorch(const TensorSource& source, const ConvertPlan& plan, const PayloadReader& read,
                          const std::string& destination, const ConvertOptions& options) {
  TorchWriteOptions write;
  write.overwrite = options.force;
  write.io_threads = options.io_threads;
  write.progress = options.progress;
  write.file_system = options.file_system;
  const bool is_dcp = TargetFormat(destination, options) == CheckpointFormat::kDcp;
  const int world_size = is_dcp ? options.world_size.value_or(source.world_size()) : 1;
  FSDP_ASSIGN_OR_RETURN(write.buffer_bytes, BufferBytes(source, plan, is_dcp ? world_size : 0, options));
  return is_dcp ? WriteDcpDirectory(destination, plan.contents, world_size, read, write)
                : WriteTorchFile(destination, plan.contents, read, write);
}

absl::Status WriteTarget(const TensorSource& source, ConvertPlan& plan, const PayloadReader& read,
                         const std::string& destination, const ConvertOptions& options) {
  switch (TargetFormat(destination, options)) {
    case CheckpointFormat::kHdf5:
      return WriteToHdf5(source, plan, read, destination, options);
    case CheckpointFormat::kSafetensors:
      return WriteToSafetensors(source, plan, read, destination, options);
    case CheckpointFormat::kTorch:
    case CheckpointFormat::kDcp:
      return WriteToTorch(source, plan, read, destination, options);
  }
  return absl::InternalError("not a CheckpointFormat");
}

ConvertReport ReportOf(const TensorSource& source, const ConvertPlan& plan, CheckpointFormat format) {
  ConvertReport report;
  for (const auto& [key, value] : plan.contents.entries()) {
    const ShardedTensor* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || (format == CheckpointFormat::kSafetensors && key.section != Section::kModel)) continue;
    ++report.tensors;
    report.bytes += tensor->shape.numel() * SizeOf(tensor->dtype);
  }
  if (format == CheckpointFormat::kSafetensors) report.notes = NotesOnSafetensors(plan.contents);
  const bool is_torch = format == CheckpointFormat::kTorch || format == CheckpointFormat::kDcp;
  StateDict kept;
  KeepSafetensorsMetadata(source.metadata(), kept);
  if (is_torch && !kept.empty()) {
    report.notes.push_back("__metadata__ is left out: PyTorch's formats have no place for it");
  }
  return report;
}

}  // namespace

absl::Status CheckConvertOptions(const std::string& destination, const ConvertOptions& options) {
  if (options.dtype && !IsFloatingPoint(*options.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype=", std::string(DTypeName(*options.dtype)), ", expected a floating-point dtype"));
  }
  if (options.max_memory < kMinConvertMemory) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_memory=", options.max_memory, ", expected at least ", kMinConvertMemory >> 20, "MiB"));
  }
  FSDP_RETURN_IF_ERROR(NameFilter::Create(options.names).status());
  const CheckpointFormat format = TargetFormat(destination, options);
  if (format == CheckpointFormat::kHdf5) return CheckHdf5Options(destination, options);
  if (format == CheckpointFormat::kSafetensors) return CheckSafetensorsOptions(destination, options);
  return CheckTorchOptions(destination, options, format);
}

absl::StatusOr<ConvertReport> ConvertCheckpoint(const std::string& source_path, const std::string& destination,
                                                const ConvertOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckConvertOptions(destination, options));
  FSDP_RETURN_IF_ERROR(CheckDestination(destination, IsTargetDirectory(destination, options), options.force));
  FSDP_ASSIGN_OR_RETURN(const NameFilter filter, NameFilter::Create(options.names));
  FSDP_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorSource> source,
      OpenTensorSource(source_path, {.flat_layout = options.flat_layout, .model_only = options.model_only}));
  FSDP_RETURN_IF_ERROR(CheckMetadata(*source, source_path, TargetFormat(destination, options)));
  FSDP_ASSIGN_OR_RETURN(ConvertPlan plan,
                        PlanConversion(source->contents(), filter, options.dtype, options.model_only));
  VerifiedReads reads(*source, plan, TargetFormat(destination, options));
  const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
    return reads.Read(key, interval, out);
  };
  ConvertReport report = ReportOf(*source, plan, TargetFormat(destination, options));
  FSDP_RETURN_IF_ERROR(WriteTarget(*source, plan, read, destination, options));
  return report;
}

}  // namespace fsdp
