// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxJsonBytes = int64_t{1} << 20;
constexpr int64_t kMaxRawBytes = int64_t{64} << 10;

}  // namespace

// The file is closed again: a job of many ranks has more files than descriptors, so payload is read through the pool,
// which opens them as needed.
absl::StatusOr<std::unique_ptr<ItemFile>> ItemFile::Open(const std::string& directory, const ItemLayout& layout,
                                                         const TensorSourceOptions& options, FilePool& pool) {
  std::unique_ptr<ItemFile> item(new ItemFile(layout));
  const std::string path = JoinPath(directory, layout.file);
  if (layout.format == ItemFormat::kSafetensors) {
    FSDP_RETURN_IF_ERROR(item->ReadSafetensors(path));
    return item;
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  const bool is_torch = layout.format == ItemFormat::kTorch;
  const absl::Status status = is_torch ? item->ReadTorch(*file, options) : item->ReadValue(*file);
  if (!status.ok()) {
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file));
    return Annotate(status, path);
  }
  if (is_torch) pool.Expect(layout.file, item->archive_);
  return item;
}

// The tree of the pickle stays with its tensors as numbers; the joiner takes it (TakeRoot) and forgets the rest of the
// archive but the places of storages.
absl::Status ItemFile::ReadTorch(const File& file, const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const FileSlice slice, FileSlice::Whole(file));
  FSDP_ASSIGN_OR_RETURN(const std::string head, slice.ReadText(0, std::min<int64_t>(slice.nbytes, 4)));
  const bool is_zip = head.size() == 4 && ZipInteger(head, 0, 4) == kZipLocalSignature;
  FSDP_ASSIGN_OR_RETURN(archive_, is_zip ? ReadTorchArchive(slice, options, TorchShards::kAllowed)
                                         : ReadLegacyTorchFile(slice, TorchShards::kAllowed));
  root_ = std::move(archive_.tree.root);
  archive_.tree.root = TorchNode();
  for (int i = 0; i < static_cast<int>(archive_.tree.tensors.size()); ++i) {
    const TorchTensor view = archive_.tree.tensors[i];
    // Such a tensor could have any size, however small the file is.
    if (view.shape.numel() <= view.storage.nbytes / SizeOf(view.dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat("a tensor of shape ", view.shape.ToString(), " is expanded from ",
                                                   view.storage.nbytes, " bytes: save its contiguous()"));
  }
  return absl::OkStatus();
}

absl::Status ItemFile::ReadSafetensors(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  root_.Reserve(static_cast<int64_t>(file->header().entries.size()));
  for (const SafetensorsEntry& entry : file->header().entries) {
    root_.Add(entry.name, TorchNode::Tensor(static_cast<int>(entries_.size())));
    entries_.push_back({entry.dtype, entry.shape, file->payload_offset() + entry.begin});
  }
  return absl::OkStatus();
}

// A file that is no dict of tensors becomes one value: JSON as it is, other bytes as a bytes object of Python.
absl::Status ItemFile::ReadValue(const File& file) {
  const bool is_json = layout_.format == ItemFormat::kJson;
  FSDP_ASSIGN_OR_RETURN(const FileSlice slice, FileSlice::Whole(file));
  const int64_t limit = is_json ? kMaxJsonBytes : kMaxRawBytes;
  if (slice.nbytes > limit) {
    left_out_ = absl::StrCat(layout_.file, " (", slice.nbytes, " bytes of ", is_json ? "JSON" : "no known form",
                             ", more than the ", limit, " of a value)");
    return absl::OkStatus();
  }
  FSDP_ASSIGN_OR_RETURN(const std::string text, slice.ReadText(0, slice.nbytes));
  FSDP_RETURN_IF_ERROR(CheckIsDownloaded(layout_.file, {text, slice.nbytes}));
  if (!is_json) {
    root_ = TorchNode::Value({{kPythonTag, "bytes"}, {"hex", absl::BytesToHexString(text)}});
    return absl::OkStatus();
  }
  PythonJson json = ParsePythonJson(text);
  if (json.is_discarded()) return absl::DataLossError("it is no JSON, or is nested too deeply");
  root_ = TorchNode::Value(std::move(json));
  return absl::OkStatus();
}

int64_t ItemFile::size() const {
  return static_cast<int64_t>(layout_.format == ItemFormat::kTorch ? archive_.tree.tensors.size() : entries_.size());
}

DType ItemFile::dtype(int tensor) const {
  return layout_.format == ItemFormat::kTorch ? archive_.tree.tensors.dtype(tensor) : entries_[tensor].dtype;
}

Shape ItemFile::shape(int tensor) const {
  return layout_.format == ItemFormat::kTorch ? archive_.tree.tensors.shape(tensor) : entries_[tensor].shape;
}

TorchWrapper ItemFile::wrapper(int tensor) const {
  return layout_.format == ItemFormat::kTorch ? archive_.tree.tensors.wrapper(tensor) : TorchWrapper();
}

const DTensor* ItemFile::dtensor(int tensor) const {
  return layout_.format == ItemFormat::kTorch ? archive_.tree.tensors.dtensor(tensor) : nullptr;
}

// Made on request from what the file's table has, because a file may have a million tensors.
LocalTensor ItemFile::tensor(int tensor) const {
  LocalTensor local;
  if (layout_.format != ItemFormat::kTorch) {
    const Entry& entry = entries_[tensor];
    local.dtype = entry.dtype;
    local.shape = entry.shape;
    local.offset = entry.offset;
    const std::vector<int64_t> strides = RowMajorStrides(entry.shape);
    local.strides.assign(strides.begin(), strides.end());
    local.storage = tensor;
    local.is_whole_storage = true;
    return local;
  }
  const TorchTensors& tensors = archive_.tree.tensors;
  const TorchTensor view = tensors[tensor];
  local.dtype = view.dtype;
  local.shape = view.shape;
  local.storage = tensors.storage_of(tensor);
  local.offset = tensors.storage_offset(local.storage) + view.offset * SizeOf(view.dtype);
  local.strides = view.strides;
  local.is_contiguous = view.is_contiguous();
  local.crc = tensors.storage_crc(local.storage);
  local.is_whole_storage = local.is_contiguous && view.shape.numel() * SizeOf(view.dtype) == view.storage.nbytes;
  return local;
}

absl::Status ItemFile::Read(FilePool& pool, int tensor, const Interval& interval, std::byte* out) const {
  const LocalTensor local = this->tensor(tensor);
  return ReadBox(pool, tensor, std::vector<int64_t>(local.shape.rank(), 0), local.shape, interval, out);
}

absl::Status ItemFile::ReadBox(FilePool& pool, int tensor, const std::vector<int64_t>& start, const Shape& shape,
                               const Interval& interval, std::byte* out) const {
  const LocalTensor local = this->tensor(tensor);
  const int64_t size = SizeOf(local.dtype);
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, pool.Open(layout_.file));
  absl::Status status;
  if (local.is_contiguous && shape == local.shape) {
    status = file->Read(local.offset + interval.begin * size, absl::MakeSpan(out, interval.size() * size));
  } else {
    // The box is a view of the local tensor with the same strides that begins at its first element.
    int64_t first = 0;
    for (int d = 0; d < shape.rank(); ++d) first += start[d] * local.strides[d];
    status = ReadStridedInterval(*file, {local.offset + first * size, size, shape, local.strides}, interval, out);
  }
  return status.ok() ? status : Annotate(status, layout_.file);
}

// The cheapest proof first: CRCs that the archive has recorded cover exactly these bytes if both tensors are their
// whole storage; else the bytes themselves, as long as there are not too many of them. nullopt: not compared.
absl::StatusOr<std::optional<bool>> AreCopies(FilePool& pool, const ItemFile& a, int tensor_of_a, const ItemFile& b,
                                              int tensor_of_b, int64_t max_bytes) {
  constexpr int64_t kBlockBytes = int64_t{1} << 20;
  const LocalTensor left = a.tensor(tensor_of_a);
  const LocalTensor right = b.tensor(tensor_of_b);
  if (left.dtype != right.dtype || left.shape != right.shape) return std::optional<bool>(false);
  if (left.shape.numel() == 0) return std::optional<bool>(true);
  const bool are_whole = left.is_whole_storage && right.is_whole_storage && left.crc != 0 && right.crc != 0;
  if (are_whole) return std::optional<bool>(left.crc == right.crc);
  const int64_t size = SizeOf(left.dtype);
  if (left.shape.numel() > max_bytes / size) return std::optional<bool>();
  const int64_t block = kBlockBytes / size;
  const auto count = static_cast<size_t>(std::min(block, left.shape.numel()) * size);
  std::vector<std::byte> of_a(count);
  std::vector<std::byte> of_b(count);
  for (int64_t begin = 0; begin < left.shape.numel(); begin += block) {
    const Interval part = {begin, std::min(begin + block, left.shape.numel())};
    FSDP_RETURN_IF_ERROR(a.Read(pool, tensor_of_a, part, of_a.data()));
    FSDP_RETURN_IF_ERROR(b.Read(pool, tensor_of_b, part, of_b.data()));
    if (std::memcmp(of_a.data(), of_b.data(), part.size() * size) != 0) return std::optional<bool>(false);
  }
  return std::optional<bool>(true);
}

}  // namespace fsdp
