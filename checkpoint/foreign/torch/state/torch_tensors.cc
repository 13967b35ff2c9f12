// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/torch_tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/strided_read.h"

namespace fsdp {
namespace {

constexpr size_t kKeyBlockBytes = size_t{16} << 10;
constexpr int64_t kDTensorBytes = sizeof(DTensor) + 32;  // and its place in a table

bool IsRowMajor(const TorchTensor& tensor) {
  const std::vector<int64_t> strides = RowMajorStrides(tensor.shape);
  return std::equal(strides.begin(), strides.end(), tensor.strides.begin(), tensor.strides.end());
}

}  // namespace

Shape TorchTensors::shape(size_t i) const {
  const Tensor& tensor = tensors_[i];
  std::array<int64_t, kMaxTorchRank> sizes;
  for (int d = 0; d < tensor.rank; ++d) sizes[d] = sizes_[tensor.sizes + d];
  return *Shape::Create(absl::MakeConstSpan(sizes.data(), tensor.rank));  // valid, since Add checked it
}

std::string_view TorchTensors::storage_key(uint32_t storage) const {
  const uint32_t place = storages_[storage].key;
  // Blocks are never reallocated, so the returned views stay valid while keys are added.
  const char* const key = keys_[place / kKeyBlockBytes].get() + place % kKeyBlockBytes;
  uint16_t length = 0;
  std::memcpy(&length, key, sizeof(length));
  return {key + sizeof(length), length};
}

const DTensor* TorchTensors::dtensor(size_t i) const {
  const auto at = dtensors_.find(static_cast<uint32_t>(i));
  return at == dtensors_.end() ? nullptr : at->second.get();
}

// Without storage.dtype, which only parsing needs: the size in bytes is known by now.
TorchTensor TorchTensors::operator[](size_t i) const {
  const Tensor& packed = tensors_[i];
  TorchTensor tensor;
  tensor.storage.key = std::string(storage_key(packed.storage));
  tensor.storage.nbytes = storages_[packed.storage].nbytes;
  tensor.dtype = packed.dtype;
  tensor.shape = shape(i);
  tensor.offset = packed.offset;
  if (packed.is_row_major) {
    const std::vector<int64_t> strides = RowMajorStrides(tensor.shape);
    tensor.strides.assign(strides.begin(), strides.end());
  } else {
    for (int d = 0; d < packed.rank; ++d) tensor.strides.push_back(sizes_[packed.sizes + packed.rank + d]);
  }
  return tensor;
}

void TorchTensors::Place(uint32_t storage, int64_t offset, uint32_t crc) {
  storages_[storage].offset = offset;
  storages_[storage].crc = crc;
}

// A seventeenth more than a deque's contents, as in pickle_builder.h.
int64_t TorchTensors::memory() const {
  return static_cast<int64_t>(tensors_.size() * sizeof(Tensor) + storages_.size() * sizeof(Storage) +
                              sizes_.size() * sizeof(int64_t)) *
             17 / 16 +
         static_cast<int64_t>(keys_.size() * kKeyBlockBytes) +
         static_cast<int64_t>(dtensors_.capacity()) * kDTensorBytes;
}

// A call that cannot be read stays a value; TreeBuilder then calls Add and returns its error.
std::optional<uint32_t> TorchTensorTaker::Take(PickleValue call) {
  if (!IsTorchTensor(call) || IsDTensor(UnwrapTorchTensor(call))) return std::nullopt;
  const absl::StatusOr<uint32_t> taken = Add(call);
  return taken.ok() ? std::make_optional(*taken) : std::nullopt;
}

int64_t TorchTensorTaker::memory() const {
  return tensors_.memory() + static_cast<int64_t>(storages_.capacity() * (sizeof(uint32_t) + 1)) * 3 / 2;
}

absl::StatusOr<uint32_t> TorchTensorTaker::Add(PickleValue value) {
  const PickleValue made = UnwrapTorchTensor(value);
  if (made.is(PickleKind::kObject)) {
    NoteWrapper(value, made.object());
    return made.object();
  }
  if (IsDTensor(made)) {
    FSDP_ASSIGN_OR_RETURN(const uint32_t local, AddDTensor(made));
    NoteWrapper(value, local);
    return local;
  }
  FSDP_ASSIGN_OR_RETURN(const TorchTensor tensor, ReadTorchTensor(value));
  FSDP_ASSIGN_OR_RETURN(const uint32_t storage, StorageOf(tensor.storage, value));
  const bool is_row_major = IsRowMajor(tensor);
  tensors_.tensors_.push_back({.offset = tensor.offset,
                               .storage = storage,
                               .sizes = SizesOf(tensor, is_row_major),
                               .dtype = tensor.dtype,
                               .rank = static_cast<uint8_t>(tensor.shape.rank()),
                               .is_row_major = is_row_major,
                               .place = static_cast<uint32_t>(value.place())});
  const auto number = static_cast<uint32_t>(tensors_.size() - 1);
  NoteWrapper(value, number);
  return number;
}

void TorchTensorTaker::NoteWrapper(PickleValue value, uint32_t number) {
  const TorchWrapper wrapper = WrapperOf(value);
  tensors_.tensors_[number].is_parameter |= wrapper.is_parameter;
  tensors_.tensors_[number].has_attributes |= wrapper.has_attributes;
}

// The local tensor is the one that is read; the rest of the DTensor is kept next to it, by its number.
absl::StatusOr<uint32_t> TorchTensorTaker::AddDTensor(PickleValue value) {
  const auto shape_of = [this](PickleValue tensor) -> absl::StatusOr<Shape> {
    if (!IsTensor(tensor)) return absl::DataLossError("a mesh that is no tensor");
    FSDP_ASSIGN_OR_RETURN(const uint32_t number, Add(tensor));
    return tensors_.shape(number);
  };
  FSDP_ASSIGN_OR_RETURN(DTensorValue read, dtensors_.Read(value, shape_of));
  FSDP_ASSIGN_OR_RETURN(const uint32_t number, Add(read.local));
  const Shape part = tensors_.shape(number);
  const DTensor& whole = read.tensor;
  bool fits = tensors_.dtype(number) == whole.dtype;
  if (whole.mesh->place >= 0) {
    fits &= part.dims() == absl::MakeConstSpan(BoxOf(whole, whole.mesh->place).count);
  } else {
    fits &= part.numel() == 0;  // the rank is not in the mesh
  }
  const DTensor* const known = tensors_.dtensor(number);
  if (known != nullptr) {
    fits &=
        known->shape == whole.shape && known->placements == whole.placements && known->mesh->ranks == whole.mesh->ranks;
  }
  if (!fits) {
    return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: a local tensor ",
                                            std::string(DTypeName(tensors_.dtype(number))), " ", part.ToString(),
                                            " is not its rank's part of ", std::string(DTypeName(whole.dtype)), " ",
                                            whole.shape.ToString(), " as ", whole.ToString()));
  }
  if (known == nullptr) {
    tensors_.dtensors_.emplace(number, std::make_unique<const DTensor>(std::move(read.tensor)));
  }
  return number;
}

// One entry for each storage: tensors that share one state its size again, and must agree.
absl::StatusOr<uint32_t> TorchTensorTaker::StorageOf(const TorchStorage& storage, PickleValue value) {
  const auto at = storages_.find(std::string_view(storage.key));
  if (at != storages_.end()) {
    const int64_t nbytes = tensors_.storage_bytes(*at);
    if (nbytes == storage.nbytes) return *at;
    return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: a tensor states that its storage ",
                                            Quote(storage.key), " has ", storage.nbytes, " bytes, and another states ",
                                            nbytes));
  }
  const auto length = static_cast<uint16_t>(storage.key.size());  // ReadTorchStorage refuses long keys
  const size_t key_bytes = sizeof(length) + length;
  // A key is never split between blocks; the rest of the old block stays unused.
  if (key_block_left_ < key_bytes) {
    key_block_left_ = kKeyBlockBytes;
    tensors_.keys_.emplace_back(new char[kKeyBlockBytes]);
  }
  const size_t in_block = kKeyBlockBytes - key_block_left_;
  char* const key = tensors_.keys_.back().get() + in_block;
  std::memcpy(key, &length, sizeof(length));
  std::memcpy(key + sizeof(length), storage.key.data(), length);
  key_block_left_ -= key_bytes;
  tensors_.storages_.push_back({.nbytes = storage.nbytes,
                                .key = static_cast<uint32_t>((tensors_.keys_.size() - 1) * kKeyBlockBytes + in_block)});
  const auto number = static_cast<uint32_t>(tensors_.storage_count() - 1);
  // After the key is in its block, which the set's hash reads.
  storages_.insert(number);
  return number;
}

// Strides are stored only if they are not row-major: nearly all tensors of a checkpoint are.
uint32_t TorchTensorTaker::SizesOf(const TorchTensor& tensor, bool is_row_major) {
  const int rank = tensor.shape.rank();
  std::optional<uint32_t>& last = last_of_rank_[rank];
  // Consecutive tensors often have equal shapes, for example the moments of one parameter.
  if (last && is_row_major && tensors_.shape(*last) == tensor.shape) return tensors_.tensors_[*last].sizes;
  const auto begin = static_cast<uint32_t>(tensors_.sizes_.size());
  const absl::Span<const int64_t> dims = tensor.shape.dims();
  tensors_.sizes_.insert(tensors_.sizes_.end(), dims.begin(), dims.end());
  if (!is_row_major) tensors_.sizes_.insert(tensors_.sizes_.end(), tensor.strides.begin(), tensor.strides.end());
  last = static_cast<uint32_t>(tensors_.size());
  return begin;
}

// storages_ hashes through tensors_, so it must be empty before the table moves.
TorchTensors TorchTensorTaker::Finish() {
  storages_.clear();
  key_block_left_ = 0;
  last_of_rank_ = {};
  dtensors_ = DTensorReader();
  return std::exchange(tensors_, TorchTensors());
}

}  // namespace fsdp
