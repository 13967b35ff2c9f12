// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_writer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/common_encoding.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"
#include "fsdp/checkpoint/foreign/megatron/optimizer_stacks.h"
#include "fsdp/checkpoint/foreign/megatron/stacks.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_encoding.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr char kDataName[] = "__0_0.distcp";  // of rank 0's first writer
constexpr int64_t kSliceAlignment = 64;       // of archives, as in DCP directories of ours
constexpr char kMetadataJson[] =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";

// Lays out the data file, and the .metadata that describes it.
class Plan {
 public:
  absl::Status Add(const std::vector<Stack>& model, const std::vector<Stack>& optimizer) {
    // Modules first, as values come before tensors in DCP's files.
    for (const Stack& stack : model) AddExtraStates(stack);
    for (const Stack& stack : model) FSDP_RETURN_IF_ERROR(AddStack(stack));
    for (const Stack& stack : optimizer) FSDP_RETURN_IF_ERROR(AddStack(stack));
    return absl::OkStatus();
  }

  const DcpMetadata& metadata() const { return metadata_; }
  const std::vector<TorchArchivePlan>& archives() const { return archives_; }

 private:
  DcpSlice AddArchive(std::string pickle, std::vector<TorchStorageSource> storages) {
    const int64_t end = archives_.empty() ? 0 : archives_.back().end();
    const int64_t offset = (end + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
    archives_.emplace_back(offset, std::move(pickle), std::move(storages));
    return {kDataName, offset, archives_.back().end() - offset};
  }

  // Megatron-Core asks for the _extra_state of every linear module, and of the attention between two of them, which is
  // None without FP8.
  void AddExtraStates(const Stack& stack) {
    const absl::string_view key = stack.key;
    const size_t at = key.rfind(".linear_");
    if (at == key.npos || !absl::EndsWith(key, ".weight") || key.find('.', at + 1) != key.rfind('.')) return;
    const std::string module(key.substr(0, key.rfind('.')));
    AddExtraState(module, stack.lengths);
    constexpr absl::string_view kQkv = ".linear_qkv";
    if (!absl::EndsWith(module, kQkv)) return;
    AddExtraState(absl::StrCat(module.substr(0, module.size() - kQkv.size()), ".core_attention"), stack.lengths);
  }

  void AddExtraState(const std::string& module, const std::vector<int64_t>& lengths) {
    const std::vector<int64_t> shape = lengths.empty() ? std::vector<int64_t>{1} : lengths;
    std::vector<int64_t> at(shape.size(), 0);
    do {
      const std::string name =
          absl::StrCat(module, "._extra_state/shard_", absl::StrJoin(at, "."), "_", absl::StrJoin(shape, "."));
      PickleWriter pickle;
      pickle.EmptyList();
      pickle.Mark();
      pickle.None();
      pickle.Appends();
      const DcpSlice slice = AddArchive(std::move(pickle).Finish(), {});
      metadata_.entries.push_back(DcpEntry::OfValue(name, {{name, false}}, metadata_.chunks.AddSlice(slice)));
    } while (Next(shape, at));
  }

  // The next index in row-major order; false after the last.
  static bool Next(const std::vector<int64_t>& shape, std::vector<int64_t>& at) {
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (++at[axis] < shape[axis]) return true;
      at[axis] = 0;
    }
    return false;
  }

  // A chunk for each member: [1, 1, out, in] at its place in [layers, experts, out, in]. A member of two stacks is
  // stored once.
  absl::Status AddStack(const Stack& stack) {
    const auto& tensor = std::get<ShardedTensor>(stack.members[0]->second);
    std::vector<int64_t> dims = stack.lengths;
    dims.insert(dims.end(), tensor.shape.dims().begin(), tensor.shape.dims().end());
    FSDP_ASSIGN_OR_RETURN(const Shape shape, Shape::Create(dims));
    const auto first = static_cast<uint32_t>(metadata_.chunks.size());
    std::vector<int64_t> at(stack.lengths.size(), 0);
    for (const StateDict::Entry* member : stack.members) {
      DcpChunk chunk;
      chunk.box.start = at;
      chunk.box.start.resize(dims.size(), 0);
      chunk.box.count.assign(at.size(), 1);
      chunk.box.count.insert(chunk.box.count.end(), tensor.shape.dims().begin(), tensor.shape.dims().end());
      FSDP_ASSIGN_OR_RETURN(const Shape part, Shape::Create(chunk.box.count));
      const auto [slice, is_new] = slices_.try_emplace(member);
      if (is_new) slice->second = AddTensor(*member, part);
      chunk.slice = slice->second;
      metadata_.chunks.Add(chunk);
      Next(stack.lengths, at);
    }
    metadata_.tensors.push_back({tensor.dtype, shape, first, static_cast<uint32_t>(metadata_.chunks.size())});
    metadata_.entries.push_back(
        DcpEntry::OfTensor(stack.key, {{stack.key, false}}, static_cast<uint32_t>(metadata_.tensors.size() - 1)));
    return absl::OkStatus();
  }

  DcpSlice AddTensor(const StateDict::Entry& entry, const Shape& part) {
    const int64_t element_size = SizeOf(std::get<ShardedTensor>(entry.second).dtype);
    PickleWriter pickle;
    EncodeTorchTensor(pickle, "0", std::get<ShardedTensor>(entry.second).dtype, part);
    return AddArchive(std::move(pickle).Finish(),
                      {{.elements = &entry.first, .interval = {0, part.numel()}, .element_size = element_size}});
  }

  DcpMetadata metadata_;
  std::vector<TorchArchivePlan> archives_;
  absl::flat_hash_map<const StateDict::Entry*, DcpSlice> slices_;  // of members
};

absl::Status WriteText(FileSystem& files, const std::string& path, const std::string& bytes) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(path));
  FSDP_RETURN_IF_ERROR(
      file->Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size())));
  return file->Sync();
}

// The number of steps that all parameters have; nullopt without one.
absl::StatusOr<std::optional<double>> ReadStep(const std::vector<const StateDict::Entry*>& steps,
                                               const PayloadReader& read) {
  std::optional<double> common;
  for (const StateDict::Entry* const entry : steps) {
    double step = 0;
    if (const auto* const text = std::get_if<std::string>(&entry->second)) {
      const ScalarOfText number = *ScalarOfState("step", *text);  // OptimizerStacksOf has no other texts
      FSDP_RETURN_IF_ERROR(Convert(number.dtype, number.bytes.data(), DType::kFloat64, &step, 1));
    } else {
      const DType dtype = std::get<ShardedTensor>(entry->second).dtype;
      std::array<std::byte, 16> bytes = {};
      FSDP_RETURN_IF_ERROR(read(entry->first, {0, 1}, bytes.data()));
      FSDP_RETURN_IF_ERROR(Convert(dtype, bytes.data(), DType::kFloat64, &step, 1));
    }
    if (common.value_or(step) != step) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(entry->first), " is ", step, ", and ", Quote(steps[0]->first.ToString()), " is ",
                       *common, ": Megatron-Core counts the steps of an optimizer once; convert with --model_only"));
    }
    common = step;
  }
  return common;
}

}  // namespace

// The iteration's files first, then latest_checkpointed_iteration.txt, then the whole directory takes its name: a
// reader never sees a ROOT that names a directory without files.
absl::Status WriteMegatron(const std::string& path, const StateDict& contents, int64_t step, const PayloadReader& read,
                           const TorchWriteOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<Stack> stacks, StacksOf(contents));
  FSDP_ASSIGN_OR_RETURN(const OptimizerStacks optimizer, OptimizerStacksOf(contents, stacks));
  Plan plan;
  FSDP_RETURN_IF_ERROR(plan.Add(stacks, optimizer.stacks));
  CommonOfRun run = {.iteration = std::max<int64_t>(step, 0), .has_optimizer = !optimizer.empty()};
  FSDP_ASSIGN_OR_RETURN(run.step, ReadStep(optimizer.steps, read));
  FSDP_ASSIGN_OR_RETURN(std::string common_pickle, EncodeCommon(contents, run));
  FileSystem& files = *options.file_system;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateDirectory(files, path, {.overwrite = options.overwrite}));
  const std::string directory =
      JoinPath(staged->path(), step < 0 ? std::string(kMegatronRelease) : MegatronIterationName(step));
  FSDP_RETURN_IF_ERROR(files.MakeDirectory(directory));
  if (!plan.archives().empty()) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> data, files.Create(JoinPath(directory, kDataName)));
    FSDP_RETURN_IF_ERROR(WriteTorchArchives(*data, plan.archives(), read, options));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> common, files.Create(JoinPath(directory, kMegatronCommonName)));
  TorchWriteOptions common_options = options;
  common_options.progress = nullptr;
  const std::vector<TorchArchivePlan> common_plan = {TorchArchivePlan(0, std::move(common_pickle), {})};
  FSDP_RETURN_IF_ERROR(WriteTorchArchives(*common, common_plan, read, common_options));
  const std::map<std::string, std::string> texts = {{kDcpMetadataName, EncodeDcpMetadata(plan.metadata())},
                                                    {kMegatronMetadataName, kMetadataJson}};
  for (const auto& [name, text] : texts) FSDP_RETURN_IF_ERROR(WriteText(files, JoinPath(directory, name), text));
  FSDP_RETURN_IF_ERROR(files.SyncDirectory(directory));
  FSDP_RETURN_IF_ERROR(WriteText(files, JoinPath(staged->path(), kMegatronLatestName),
                                 step < 0 ? std::string(kMegatronRelease) : absl::StrCat(step)));
  return staged->Commit();
}

}  // namespace fsdp
