// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/torch/torch_source.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "checkpoint/hdf5/hyperslab.h"
#include "checkpoint/safetensors/hugging_face_index.h"
#include "checkpoint/source/bool_bytes.h"
#include "checkpoint/torch/strided_read.h"
#include "checkpoint/torch/torch_file.h"
#include "checkpoint/torch/torch_state.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

using TorchFiles = std::vector<std::unique_ptr<TorchFile>>;

// Tensor `index` of file `file`; where several files are one tree, tensors are numbered through.
struct TensorRef {
  const TorchFile* file = nullptr;
  int index = 0;
};

class TorchSource final : public TensorSource {
 public:
  // `root` is the tree of all files.
  static absl::StatusOr<std::unique_ptr<TensorSource>> Create(const std::string& path, TorchFiles files,
                                                              const TorchNode& root) {
    std::unique_ptr<TorchSource> source(new TorchSource(path));
    std::vector<TorchLeafType> types;
    for (size_t i = 0; i < files.size(); ++i) {
      const std::vector<TorchTensor>& tensors = files[i]->archive().tree.tensors;
      for (size_t j = 0; j < tensors.size(); ++j) {
        source->tensors_.push_back({files[i].get(), static_cast<int>(j)});
        types.push_back({tensors[j].dtype, tensors[j].shape, Identity(i, tensors[j])});
      }
    }
    source->files_ = std::move(files);
    absl::StatusOr<TorchState> state = StateOfTree(root, types);
    if (!state.ok()) {
      return absl::Status(state.status().code(), absl::StrCat(path, ": ", std::string(state.status().message())));
    }
    source->state_ = *std::move(state);
    return source;
  }

  std::string_view format() const override { return "torch"; }
  const StateDict& contents() const override { return state_.contents; }
  int64_t step() const override { return state_.step; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    ASSIGN_OR_RETURN(const TorchLeaf* leaf, Find(key));
    const ShardedTensor& described = *state_.contents.FindTensor(key);
    if (!Interval{0, described.shape.numel()}.Contains(interval) || interval.begin > interval.end) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(key.ToString()), ": elements ",
                                                     interval.ToString(), " of ", described.shape.numel()));
    }
    if (leaf->tensor < 0) {
      std::memcpy(out, leaf->bytes.data() + interval.begin * SizeOf(described.dtype),
                  interval.size() * SizeOf(described.dtype));
      return absl::OkStatus();
    }
    const TensorRef& ref = tensors_[leaf->tensor];
    absl::Status status = ReadView(ref, interval, static_cast<std::byte*>(out));
    if (status.ok() && described.dtype == DType::kBool) status = CheckBoolBytes(out, interval);
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("tensor ", Quote(key.ToString()), ", ", ref.file->place(ref.index).entry, " of ",
                                     ref.file->file().path(), ": ", std::string(status.message())));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    ASSIGN_OR_RETURN(const TorchLeaf* leaf, Find(key));
    if (leaf->tensor < 0) return absl::UnimplementedError("it is a number in the pickle, not a tensor");
    const TensorRef& ref = tensors_[leaf->tensor];
    const TorchTensor& tensor = ref.file->archive().tree.tensors[ref.index];
    if (!tensor.is_contiguous()) {
      return absl::UnimplementedError(absl::StrCat("it is a view with strides [", absl::StrJoin(tensor.strides, ", "),
                                                   "], whose elements lie apart"));
    }
    Box whole;
    whole.start.assign(tensor.shape.rank(), 0);
    whole.count.assign(tensor.shape.dims().begin(), tensor.shape.dims().end());
    return std::vector<TensorPlace>{{ref.file->file().path(), First(ref), std::move(whole)}};
  }

 private:
  explicit TorchSource(std::string path) : path_(std::move(path)) {}

  // Tensors with elements that are the same view of the same storage.
  static std::string Identity(size_t file, const TorchTensor& tensor) {
    if (tensor.shape.numel() == 0) return "";
    return absl::StrCat(file, "/", tensor.storage.key, "/", tensor.offset, "/", tensor.shape.ToString(), "/",
                        absl::StrJoin(tensor.strides, ","), "/", static_cast<int>(tensor.dtype));
  }

  absl::StatusOr<const TorchLeaf*> Find(const StateKey& key) const {
    const auto at = state_.leaves.find(key);
    if (at != state_.leaves.end()) return &at->second;
    return absl::NotFoundError(absl::StrCat(path_, " holds no tensor ", Quote(key.ToString())));
  }

  // The byte of the first element.
  static int64_t First(const TensorRef& ref) {
    const TorchTensor& tensor = ref.file->archive().tree.tensors[ref.index];
    return ref.file->place(ref.index).offset + tensor.offset * SizeOf(tensor.dtype);
  }

  static absl::Status ReadView(const TensorRef& ref, const Interval& interval, std::byte* out) {
    const TorchTensor& tensor = ref.file->archive().tree.tensors[ref.index];
    const int64_t size = SizeOf(tensor.dtype);
    if (tensor.is_contiguous()) {
      return ref.file->file().Read(First(ref) + interval.begin * size, absl::MakeSpan(out, interval.size() * size));
    }
    const std::vector<int64_t> row_major = RowMajorStrides(tensor.shape);
    for (const Box& box : BoxesOf(tensor.shape, interval)) {
      StridedBox strided = {First(ref), size, {}};
      int64_t to = -interval.begin;
      for (size_t d = 0; d < box.start.size(); ++d) {
        strided.offset += box.start[d] * tensor.strides[d] * size;
        to += box.start[d] * row_major[d];
        strided.dims.push_back({box.count[d], tensor.strides[d], row_major[d]});
      }
      RETURN_IF_ERROR(ReadStrided(ref.file->file(), std::move(strided), out + to * size));
    }
    return absl::OkStatus();
  }

  const std::string path_;
  TorchFiles files_;
  std::vector<TensorRef> tensors_;
  TorchState state_;
  const std::map<std::string, std::string> metadata_;
};

// Adds the members of a file's tree to that of all; its tensors are numbered from `first`.
absl::Status AddMembers(const TorchFile& file, const HuggingFaceIndex& index, int first, TorchNode& root) {
  const std::string name = fs::path(file.file().path()).filename();
  for (const auto& [tensor, node] : file.archive().tree.root.members()) {
    const auto at = index.weight_map.find(tensor);
    if (node.kind() != TorchNode::Kind::kTensor) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.file().path(), ": ", Quote(tensor), " is no tensor, but the files of an index hold a plain state dict"));
    }
    if (at == index.weight_map.end() || at->second != name) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(tensor), " of ", file.file().path(),
                                              " is not placed there by ", kTorchIndexName));
    }
    root.Add(tensor, TorchNode::Tensor(first + node.tensor()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenIndexed(const std::string& path) {
  const std::string index_path = fs::path(path) / kTorchIndexName;
  constexpr int64_t kMaxIndexBytes = 100'000'000;
  ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), index_path, kMaxIndexBytes));
  const absl::StatusOr<HuggingFaceIndex> index = ParseHuggingFaceIndex(text);
  if (!index.ok()) {
    return absl::Status(index.status().code(), absl::StrCat(std::string(index.status().message()), " in ", index_path));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : index->weight_map) names.insert(file);
  TorchFiles files;
  TorchNode root;
  int tensors = 0;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::Open(fs::path(path) / name));
    RETURN_IF_ERROR(AddMembers(*file, *index, tensors, root));
    tensors += static_cast<int>(file->archive().tree.tensors.size());
    files.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : index->weight_map) {
    if (root.Find(tensor) != nullptr) continue;
    return absl::DataLossError(
        absl::StrCat("tensor ", Quote(tensor), " is missing in ", Quote(file), ", where ", index_path, " places it"));
  }
  return TorchSource::Create(path, std::move(files), root);
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

bool IsTorchDirectory(const std::string& directory) {
  return Exists(fs::path(directory) / kTorchModelName) || Exists(fs::path(directory) / kTorchIndexName);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchSource(const std::string& path) {
  std::string file_path = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    file_path = fs::path(path) / kTorchModelName;
    if (!Exists(file_path)) return OpenIndexed(path);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::Open(file_path));
  const TorchNode root = file->archive().tree.root;
  TorchFiles files;
  files.push_back(std::move(file));
  return TorchSource::Create(path, std::move(files), root);
}

}  // namespace fsdp
