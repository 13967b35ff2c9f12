// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/tensor_list.h"

#include <algorithm>
#include <cstring>

#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/strided_read.h"

namespace fsdp {
namespace {

absl::Status ReadView(const TensorRef& ref, const Interval& interval, std::byte* out) {
  const TorchTensor tensor = ref.tensor();
  const int64_t size = SizeOf(tensor.dtype);
  if (tensor.is_contiguous()) {
    return ref.file->payload().Read(ref.first_byte() + interval.begin * size,
                                    absl::MakeSpan(out, interval.size() * size));
  }
  return ReadStridedInterval(ref.file->payload(), {ref.first_byte(), size, tensor.shape, tensor.strides}, interval,
                             out);
}

// True if both tensors are the same view of storages of equal size.
bool AreSameView(const TorchTensor& a, const TorchTensor& b) {
  return a.offset == b.offset && a.strides == b.strides && a.storage.nbytes == b.storage.nbytes;
}

uint32_t CrcOf(const TensorRef& ref) { return ref.tensors().storage_crc(ref.tensors().storage_of(ref.index)); }

// Compares `nbytes` bytes that `read(ref, begin, end, out)` reads from each, a block at a time.
template <typename Read>
absl::StatusOr<bool> AreEqualBytes(const TensorRef& a, const TensorRef& b, int64_t count, int64_t size,
                                   const Read& read) {
  const int64_t block = std::max<int64_t>(1, kBlockBytes / size);
  std::vector<std::byte> of_a(static_cast<size_t>(std::min(block, count) * size));
  std::vector<std::byte> of_b(of_a.size());
  for (int64_t begin = 0; begin < count; begin += block) {
    const Interval part = {begin, std::min(begin + block, count)};
    FSDP_RETURN_IF_ERROR(Annotate(read(a, part, of_a.data()), a.file->path()));
    FSDP_RETURN_IF_ERROR(Annotate(read(b, part, of_b.data()), b.file->path()));
    if (std::memcmp(of_a.data(), of_b.data(), part.size() * size) != 0) return false;
  }
  return true;
}

absl::Status ReadStored(const TensorRef& ref, const Interval& bytes, std::byte* out) {
  return ref.file->payload().Read(ref.first_byte() + bytes.begin, absl::MakeSpan(out, bytes.size()));
}

}  // namespace

int64_t TensorRef::first_byte() const {
  const TorchTensor view = tensor();
  return file->offset(index) + view.offset * SizeOf(view.dtype);
}

TensorList::TensorList(const TorchFiles& files) {
  for (const std::shared_ptr<TorchFile>& file : files) {
    firsts_.push_back(size_);
    files_.push_back(file.get());
    size_ += static_cast<int64_t>(file->archive().tree.tensors.size());
  }
}

TensorRefs TensorList::operator[](int64_t i) const {
  if (files_.empty()) return refs_[i];
  const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), i);
  const auto file = static_cast<size_t>(after - firsts_.begin() - 1);
  return {TensorRef{files_[file], static_cast<int>(i - firsts_[file])}};
}

// Reads each shard's part of `interval`. Shards are few: one for each rank of a run.
absl::Status ReadRefs(const TensorRefs& refs, const Interval& interval, std::byte* out) {
  if (refs.size() == 1) return ReadView(refs[0], interval, out);
  int64_t begin = 0;  // of this shard, in elements of the whole
  for (const TensorRef& ref : refs) {
    const TorchTensor tensor = ref.tensor();
    const Interval part = Intersect(interval, {begin, begin + tensor.shape.numel()});
    if (!part.empty()) {
      std::byte* const to = out + (part.begin - interval.begin) * SizeOf(tensor.dtype);
      FSDP_RETURN_IF_ERROR(ReadView(ref, {part.begin - begin, part.end - begin}, to));
    }
    begin += tensor.shape.numel();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AreEqual(const TensorRef& a, const TensorRef& b) {
  const TorchTensor view = a.tensor();
  const TorchTensor other = b.tensor();
  if (view.dtype != other.dtype || view.shape != other.shape) return false;
  const bool is_same_view = AreSameView(view, other);
  if (is_same_view && CrcOf(a) != 0 && CrcOf(a) == CrcOf(b)) return true;
  const int64_t size = SizeOf(view.dtype);
  const int64_t nbytes = view.shape.numel() * size;
  // An expanded view may claim any number of elements, but has no more bytes than its file.
  if (nbytes > view.touched_bytes() || nbytes > other.touched_bytes()) {
    return is_same_view ? AreEqualBytes(a, b, view.touched_bytes(), 1, ReadStored) : false;
  }
  return AreEqualBytes(a, b, view.shape.numel(), size, ReadView);
}

}  // namespace fsdp
