// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/stored_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<TorchFile>> StoredTensors::OpenFile(const std::string& name,
                                                                   const TensorSourceOptions& options,
                                                                   uint32_t* number) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> opened, TorchFile::Open(JoinPath(directory_, name), options));
  const TorchArchive& archive = opened->archive();
  FSDP_RETURN_IF_ERROR(Annotate(CheckRecordedName(SplitPath(name).name, archive.folder), opened->path()));
  pool_.Expect(name, archive);
  *number = static_cast<uint32_t>(files_.size());
  files_.push_back(name);
  return opened;
}

// Equal views get one number, which is how tied weights are found.
int StoredTensors::AddView(uint32_t file, const TorchFile& opened, int index, const Shape* shape) {
  const TorchTensors& tensors = opened.archive().tree.tensors;
  const TorchTensor tensor = tensors[index];
  View view = {.file = file,
               .storage = tensors.storage_of(index),
               .byte = opened.offset(index) + tensor.offset * SizeOf(tensor.dtype),
               .storage_bytes = tensor.storage.nbytes,
               .touched_bytes = tensor.touched_bytes(),
               .dtype = tensor.dtype,
               .shape = tensor.shape,
               .strides = tensor.strides,
               .wrapper = tensors.wrapper(index)};
  if (shape != nullptr) {
    const std::vector<int64_t> strides = RowMajorStrides(*shape);
    view.shape = *shape;
    view.strides.assign(strides.begin(), strides.end());
  }
  const auto number = static_cast<int>(views_.size());
  if (tensor.shape.numel() > 0) {  // tensors without elements share nothing
    const auto [known, is_new] =
        numbers_.try_emplace(ViewKey(file, view.byte, view.dtype, {view.shape.dims().begin(), view.shape.dims().end()},
                                     {view.strides.begin(), view.strides.end()}),
                             number);
    if (!is_new) return known->second;
  }
  views_.push_back(std::move(view));
  return number;
}

int StoredTensors::AddWidened(int view) {
  View widened = views_[view];
  widened.is_widened = true;
  views_.push_back(std::move(widened));
  return static_cast<int>(views_.size() - 1);
}

// A node of a file's tree with the tensors' numbers replaced by the numbers of views here.
TorchNode StoredTensors::Import(uint32_t file, const TorchFile& opened, TorchNode& node) {
  TorchNode imported;
  if (node.kind() == TorchNode::Kind::kTensor) {
    imported = TorchNode::Tensor(AddView(file, opened, node.tensor()));
  } else if (node.kind() == TorchNode::Kind::kValue) {
    imported = TorchNode::Value(node.value());
  } else {
    imported.Reserve(static_cast<int64_t>(node.members().size()));
    imported.TakeForm(node);
    (void)node.Consume([&](const std::string& name, TorchNode& member) {
      imported.Add(name, Import(file, opened, member));
      return absl::OkStatus();
    });
  }
  imported.TakeForm(node);
  return imported;
}

std::optional<FlatRun> StoredTensors::RunOf(uint32_t file, const TorchFile& opened, int index) {
  const TorchTensor tensor = opened.archive().tree.tensors[index];
  if (tensor.shape.rank() != 1 || !tensor.is_contiguous()) return std::nullopt;
  return FlatRun{.numel = tensor.shape.numel(),
                 .byte = opened.offset(index) + tensor.offset * SizeOf(tensor.dtype),
                 .file = file,
                 .dtype = tensor.dtype};
}

absl::StatusOr<std::string> StoredTensors::ScalarBytes(const TorchFile& opened, int index) {
  const TorchTensor tensor = opened.archive().tree.tensors[index];
  const int64_t size = SizeOf(tensor.dtype);
  std::string bytes(size, '\0');
  FSDP_RETURN_IF_ERROR(opened.payload().Read(opened.offset(index) + tensor.offset * size,
                                             absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  return bytes;
}

// Numbers after the views: every state of every parameter has one, so that no table of them is needed. The coverage is
// computed once; a missing part of a parameter is an error; a parameter without a state (frozen) is not.
absl::Status StoredTensors::SetParameters(NamedShapes parameters, std::vector<int64_t> offsets,
                                          std::vector<std::string> states, std::vector<FlatSpace> spaces) {
  numbers_.clear();
  parameters_ = std::move(parameters);
  offsets_ = std::move(offsets);
  spaces_ = std::move(spaces);
  for (size_t s = 0; s < spaces_.size(); ++s) {
    if (!spaces_[s].Finish()) return absl::DataLossError(absl::StrCat(Quote(states[s]), " has parts that overlap"));
    std::vector<std::optional<DType>>& dtypes = dtypes_.emplace_back(parameters_.size());
    for (size_t p = 0; p < parameters_.size(); ++p) {
      DType dtype = DType::kFloat32;
      const FlatSpace::Coverage coverage = spaces_[s].Covers(offsets_[p], parameters_[p].second.numel(), &dtype);
      if (coverage == FlatSpace::Coverage::kWhole) dtypes[p] = dtype;
      if (coverage == FlatSpace::Coverage::kPart) {
        return absl::DataLossError(
            absl::StrCat(Quote(states[s]), " of ", Quote(parameters_[p].first),
                         " is not whole, or of several dtypes: a rank's file has no part of it"));
      }
    }
  }
  return absl::OkStatus();
}

std::optional<int> StoredTensors::StateOf(size_t parameter, size_t state) const {
  if (!dtypes_[state][parameter]) return std::nullopt;
  return static_cast<int>(views_.size() + state * parameters_.size() + parameter);
}

int64_t StoredTensors::size() const {
  return static_cast<int64_t>(views_.size() + spaces_.size() * parameters_.size());
}

TorchLeafTypes StoredTensors::types() const {
  return {size(), [this](int i) { return type(i); }};
}

TorchLeafType StoredTensors::type(int i) const {
  const auto number = static_cast<size_t>(i);
  if (number < views_.size()) {
    const View& view = views_[number];
    const int identity = view.shape.numel() > 0 ? i : -1;
    return {view.is_widened ? DType::kFloat32 : view.dtype, view.shape, identity, view.wrapper};
  }
  const size_t state = (number - views_.size()) / parameters_.size();
  const size_t parameter = (number - views_.size()) % parameters_.size();
  // A state that a parameter does not have has no elements, so that a sum over all tensors is the sum of the file.
  const std::optional<DType> dtype = dtypes_[state][parameter];
  return {dtype.value_or(DType::kFloat32), dtype ? parameters_[parameter].second : Shape({0}), dtype ? i : -1};
}

absl::Status StoredTensors::Read(int i, const Interval& interval, std::byte* out) const {
  const auto number = static_cast<size_t>(i);
  if (number < views_.size()) {
    const View& view = views_[number];
    return view.is_widened ? ReadWidened(view, interval, out) : ReadView(view, interval, out);
  }
  const FlatReader read = [this](uint32_t file_number, int64_t byte, absl::Span<std::byte> bytes) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, pool_.Open(files_[file_number]));
    return Annotate(file->Read(byte, bytes), file->path());
  };
  const size_t state = (number - views_.size()) / parameters_.size();
  const size_t parameter = (number - views_.size()) % parameters_.size();
  const absl::Status status =
      spaces_[state].Read(offsets_[parameter], parameters_[parameter].second.numel(), interval, read, out);
  const bool is_bool = status.ok() && dtypes_[state][parameter] == DType::kBool;
  return is_bool ? CheckBoolBytes(out, interval) : status;
}

absl::Status StoredTensors::ReadView(const View& view, const Interval& interval, std::byte* out) const {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, pool_.Open(files_[view.file]));
  absl::Status status =
      ReadStridedInterval(*file, {view.byte, SizeOf(view.dtype), view.shape, view.strides}, interval, out);
  if (status.ok() && view.dtype == DType::kBool) status = CheckBoolBytes(out, interval);
  return Annotate(status, file->path());
}

// In blocks, so that a large buffer is not in memory twice.
absl::Status StoredTensors::ReadWidened(const View& view, const Interval& interval, std::byte* out) const {
  constexpr int64_t kBlock = 64 << 10;  // elements
  std::vector<std::byte> block(std::min(kBlock, interval.size()) * SizeOf(view.dtype));
  for (int64_t begin = interval.begin; begin < interval.end; begin += kBlock) {
    const Interval piece = {begin, std::min(interval.end, begin + kBlock)};
    FSDP_RETURN_IF_ERROR(ReadView(view, piece, block.data()));
    FSDP_RETURN_IF_ERROR(Convert(view.dtype, block.data(), DType::kFloat32, out, piece.size()));
    out += piece.size() * SizeOf(DType::kFloat32);
  }
  return absl::OkStatus();
}

std::optional<TensorStorage> StoredTensors::Storage(int i) const {
  if (static_cast<size_t>(i) >= views_.size() || views_[i].is_widened) return std::nullopt;
  const View& view = views_[i];
  return TensorStorage{.id = (int64_t{view.file} << 32) + view.storage,
                       .nbytes = view.storage_bytes,
                       .view = i,
                       .touched_bytes = view.touched_bytes};
}

absl::StatusOr<std::vector<TensorPlace>> StoredTensors::Places(int i) const {
  if (static_cast<size_t>(i) >= views_.size()) {
    return absl::UnimplementedError("its elements are in flat tensors of several parameters");
  }
  const View& view = views_[i];
  if (view.is_widened) return absl::UnimplementedError("it is read in another dtype than it is stored in");
  const std::vector<int64_t> row_major = RowMajorStrides(view.shape);
  for (int d = 0; d < view.shape.rank(); ++d) {
    if (view.shape.dim(d) > 1 && view.strides[d] != row_major[d]) {
      return absl::UnimplementedError("it is a view whose elements are not contiguous");
    }
  }
  Box whole = {std::vector<int64_t>(view.shape.rank(), 0), {view.shape.dims().begin(), view.shape.dims().end()}};
  return std::vector<TensorPlace>{{JoinPath(directory_, files_[view.file]), view.byte, std::move(whole)}};
}

std::vector<std::string> StoredTensors::files() const {
  std::vector<std::string> paths;
  for (const std::string& name : files_) paths.push_back(JoinPath(directory_, name));
  return paths;
}

}  // namespace fsdp
