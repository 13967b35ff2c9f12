// SPDX-License-Identifier: Apache-2.0
//
// Reading element by element would take a call each; the whole span, from the first element to the last, can be far
// larger than the wanted elements (one column of a large matrix). So boxes are cut: dimensions are sorted by their
// stride in the file, and as long as the span wastes too much or does not fit in the buffer, the outermost dimension is
// halved. Each half has about half of the span and all of its own elements. A run of elements that is contiguous on
// both sides needs no buffer. Sorting makes a transposed view as cheap as a plain one: the file is read in its own
// order, and only the copies in memory are not sequential.
#include "fsdp/checkpoint/source/strided_read.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

constexpr int64_t kScratchBytes = int64_t{1} << 20;
constexpr int64_t kMaxWaste = 4;  // bytes read for each wanted byte

int64_t Numel(const std::vector<StridedDim>& dims) {
  int64_t numel = 1;
  for (const StridedDim& dim : dims) numel *= dim.count;
  return numel;
}

// Elements from the first to the last of the box in the file.
int64_t Span(const std::vector<StridedDim>& dims) {
  int64_t span = 1;
  for (const StridedDim& dim : dims) span += (dim.count - 1) * dim.from_stride;
  return span;
}

// The same elements with fewer dimensions: sorted by falling stride in the file, without dimensions of size 1, and with
// neighbours joined if they form one longer dimension on both sides.
std::vector<StridedDim> Normalise(std::vector<StridedDim> dims) {
  dims.erase(std::remove_if(dims.begin(), dims.end(), [](const StridedDim& dim) { return dim.count == 1; }),
             dims.end());
  std::stable_sort(dims.begin(), dims.end(),
                   [](const StridedDim& a, const StridedDim& b) { return a.from_stride > b.from_stride; });
  std::vector<StridedDim> joined;
  for (const StridedDim& dim : dims) {
    StridedDim* const last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->from_stride == dim.from_stride * dim.count &&
        last->to_stride == dim.to_stride * dim.count) {
      *last = {last->count * dim.count, dim.from_stride, dim.to_stride};
    } else {
      joined.push_back(dim);
    }
  }
  return joined;
}

class Reader {
 public:
  Reader(const ByteReader& read, int64_t element_size) : read_(read), size_(element_size) {}

  absl::Status Read(int64_t offset, std::vector<StridedDim> dims, std::byte* out) {
    const int64_t wanted = Numel(dims) * size_;
    if (wanted == 0) return absl::OkStatus();
    // The recursion ends here or at the span of a page: halves shrink until they are one run or fit.
    const bool is_run = dims.empty() || (dims.size() == 1 && dims[0].from_stride == 1 && dims[0].to_stride == 1);
    if (is_run) return read_(offset, absl::MakeSpan(out, wanted));
    const int64_t span = Span(dims) * size_;
    // A read of less than a page costs as much as a read of a page.
    if (span <= kPageBytes || (span <= kScratchBytes && span <= kMaxWaste * wanted)) {
      scratch_.resize(std::max<size_t>(scratch_.size(), span));
      FSDP_RETURN_IF_ERROR(read_(offset, absl::MakeSpan(scratch_.data(), span)));
      Scatter(scratch_.data(), dims, 0, out);
      return absl::OkStatus();
    }
    // Too much waste or too long: halve the outermost dimension.
    StridedDim& widest = dims[0];
    const int64_t half = widest.count / 2;
    const int64_t from = half * widest.from_stride * size_;
    const int64_t to = half * widest.to_stride * size_;
    std::vector<StridedDim> rest = dims;
    rest[0].count -= half;
    widest.count = half;
    FSDP_RETURN_IF_ERROR(Read(offset, Normalise(std::move(dims)), out));
    return Read(offset + from, Normalise(std::move(rest)), out + to);
  }

 private:
  void Scatter(const std::byte* from, const std::vector<StridedDim>& dims, size_t d, std::byte* to) const {
    if (d == dims.size()) {
      std::memcpy(to, from, size_);
      return;
    }
    if (d + 1 == dims.size() && dims[d].from_stride == 1 && dims[d].to_stride == 1) {
      std::memcpy(to, from, dims[d].count * size_);
      return;
    }
    for (int64_t i = 0; i < dims[d].count; ++i) {
      Scatter(from + i * dims[d].from_stride * size_, dims, d + 1, to + i * dims[d].to_stride * size_);
    }
  }

  const ByteReader& read_;
  const int64_t size_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::vector<int64_t> RowMajorStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.rank(), 1);
  for (int d = shape.rank() - 2; d >= 0; --d) strides[d] = strides[d + 1] * std::max<int64_t>(shape.dim(d + 1), 1);
  return strides;
}

absl::Status ReadStrided(const ByteReader& read, StridedBox box, std::byte* out) {
  return Reader(read, box.element_size).Read(box.offset, Normalise(std::move(box.dims)), out);
}

absl::Status ReadStrided(const File& file, StridedBox box, std::byte* out) {
  const ByteReader read = [&](int64_t offset, absl::Span<std::byte> bytes) { return file.Read(offset, bytes); };
  return ReadStrided(read, std::move(box), out);
}

// An interval of row-major elements is a few boxes; in each, file and memory differ only by strides.
absl::Status ReadStridedInterval(const File& file, const StridedView& view, const Interval& interval, std::byte* out) {
  const std::vector<int64_t> row_major = RowMajorStrides(view.shape);
  for (const Box& box : BoxesOf(view.shape, interval)) {
    StridedBox strided = {view.offset, view.element_size, {}};
    int64_t to = -interval.begin;
    for (size_t d = 0; d < box.start.size(); ++d) {
      strided.offset += box.start[d] * view.strides[d] * view.element_size;
      to += box.start[d] * row_major[d];
      strided.dims.push_back({box.count[d], view.strides[d], row_major[d]});
    }
    FSDP_RETURN_IF_ERROR(ReadStrided(file, std::move(strided), out + to * view.element_size));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
