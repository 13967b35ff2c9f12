// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/dist_source.h"

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/megatron/common_values.h"
#include "fsdp/checkpoint/foreign/megatron/dist_state.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_traits.h"
#include "fsdp/checkpoint/foreign/megatron/stacked_name.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_tensors.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// torch_dist is a DCP directory with conventions: the layers of a model are stacked in one tensor, and what is no
// tensor is in common.pt. DcpTensors does the reading; MakeDistState divides the stacks and gives names.
class DistSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  DistSource(std::string given, std::string path, DcpMetadata metadata, const TensorSourceOptions& options)
      : given_(std::move(given)),
        path_(std::move(path)),
        world_size_(metadata.plans > 0 ? metadata.plans : DcpWorldSize(metadata.chunks.slices().files())),
        tensors_(path_, std::move(metadata), options) {}

  absl::Status ReadState(CommonValues common, int64_t metadata_bytes, bool model_only) {
    FSDP_ASSIGN_OR_RETURN(step_, MegatronStep(path_, common.iteration));
    const int64_t global_step = common.iteration ? -1 : common.global_step.value_or(-1);
    absl::StatusOr<TorchState> state =
        MakeDistState({.entries = tensors_.TakeEntries(),
                       .tensor = [this](int i) -> const DcpTensor& { return tensors_[i]; },
                       .common = std::move(common),
                       .model_only = model_only,
                       .metadata_bytes = metadata_bytes});
    if (!state.ok()) return Annotate(state.status(), path_);
    state_ = *std::move(state);
    state_.path = path_;
    if (global_step < 0) return absl::OkStatus();
    step_ = global_step;
    state_.layout.notes.push_back(absl::StrCat("step ", step_, " is \"global_step\" of ", kMegatronCommonName));
    return absl::OkStatus();
  }

  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }
  const FormatTraits& traits() const override { return MegatronTraits(); }
  const StateDict& contents() const override { return state_.contents; }
  const SourceLayout& layout() const override { return state_.layout; }
  int64_t step() const override { return step_; }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return string_metadata_; }
  bool has_checksums() const override { return tensors_.has_checksums(); }
  absl::Status VerifyRest() const override { return tensors_.VerifyRest(); }

  std::vector<std::string> files() const override {
    std::vector<std::string> files = tensors_.files();
    for (const char* const name : {kMegatronMetadataName, kMegatronCommonName}) files.push_back(JoinPath(path_, name));
    return files;
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> left_out = state_.left_out;
    for (std::string& beside : WeightsBesideStep(given_, path_, files())) left_out.push_back(std::move(beside));
    return left_out;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      absl::Status status = tensors_.Read(tensor, elements, to);
      if (!status.ok()) return Annotate(status, Describe(key));
      if (tensors_[tensor].dtype != DType::kBool) return status;
      return Annotate(CheckBoolBytes(to, interval), absl::StrCat(Describe(key), " of ", path_));
    };
    return state_.Read(key, interval, read, static_cast<std::byte*>(out));
  }

  // The chunks of a layer, if no other layer is in them.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    if (leaf->tensor_part() == nullptr) return absl::UnimplementedError("it is a number of common.pt");
    return tensors_.Places(leaf->tensor_part()->tensor, IndicesOf(key, *leaf->tensor_part()));
  }

  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const DcpTensors::Storage storage = tensors_.StorageOf(part.tensor, IndicesOf(key, part));
    // Each layer has chunks of its own, so it has a storage of its own.
    return TensorStorage{.id = static_cast<int64_t>(*state_.contents.IndexOf(key)),
                         .nbytes = storage.nbytes,
                         .view = 0,
                         .touched_bytes = storage.nbytes};
  }

  absl::Status ReadDistinct(const StateKey&, const Interval&, void*) const override {
    return absl::UnimplementedError("it is a part of a tensor of .metadata");
  }

 private:
  // The indices of `part`, which is tensor `key`, along the first axes of the tensor of .metadata.
  std::vector<int64_t> IndicesOf(const StateKey& key, const TorchTensorPart& part) const {
    const Shape& shape = tensors_[part.tensor].shape;
    const Shape& own = state_.contents.FindTensor(key)->shape;
    std::vector<int64_t> at(shape.rank() - own.rank(), 0);
    int64_t rest = own.numel() == 0 ? 0 : part.offset / own.numel();
    for (int axis = static_cast<int>(at.size()) - 1; axis >= 0; --axis) {
      at[axis] = rest % shape.dim(axis);
      rest /= shape.dim(axis);
    }
    return at;
  }

  const std::string given_;
  const std::string path_;
  const int world_size_;
  DcpTensors tensors_;
  TorchState state_;
  int64_t step_ = -1;
  const std::map<std::string, std::string> string_metadata_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenMegatronDist(const std::string& given, const std::string& directory,
                                                               const TensorSourceOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckMegatronMetadata(directory));
  const std::string common_path = JoinPath(directory, kMegatronCommonName);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TorchFile> common_file, TorchFile::Open(common_path, options));
  absl::StatusOr<CommonValues> common = ReadCommonValues(common_file->TakeRoot());
  if (!common.ok()) return Annotate(common.status(), common_path);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> metadata_file,
                        PosixFileSystem().Open(JoinPath(directory, kDcpMetadataName)));
  FSDP_ASSIGN_OR_RETURN(const int64_t metadata_bytes, metadata_file->Size());
  FSDP_ASSIGN_OR_RETURN(DcpMetadata metadata, ReadDcpMetadata(directory));
  auto source = std::make_unique<DistSource>(given, directory, std::move(metadata), options);
  FSDP_RETURN_IF_ERROR(source->ReadState(*std::move(common), metadata_bytes, options.model_only));
  return source;
}

}  // namespace fsdp
