// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/joined_tensor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/strided_read.h"

namespace fsdp {
namespace {

// The common box; false if it is empty.
bool Overlap(const Box& a, const Box& b, Box* common) {
  common->start.clear();
  common->count.clear();
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t begin = std::max(a.start[d], b.start[d]);
    const int64_t end = std::min(a.start[d] + a.count[d], b.start[d] + b.count[d]);
    if (begin >= end) return false;
    common->start.push_back(begin);
    common->count.push_back(end - begin);
  }
  return true;
}

int64_t Numel(const Box& box) {
  int64_t numel = 1;
  for (const int64_t count : box.count) numel *= count;
  return numel;
}

std::string ToString(const Box& box) {
  return absl::StrCat("[", absl::StrJoin(box.count, ", "), "] at [", absl::StrJoin(box.start, ", "), "]");
}

bool IsInside(const Box& box, const Shape& shape) {
  const size_t rank = shape.rank();
  if (box.start.size() != rank || box.count.size() != rank) return false;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t size = shape.dim(static_cast<int>(d));
    if (box.start[d] < 0 || box.count[d] < 0 || box.count[d] > size || box.start[d] > size - box.count[d]) return false;
  }
  return true;
}

// Boxes sorted by their start along one dimension overlap a later one only until its start is past their end.
absl::Status CheckDisjoint(std::vector<const Box*> boxes) {
  std::sort(boxes.begin(), boxes.end(), [](const Box* a, const Box* b) { return a->start < b->start; });
  Box common;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& a = *boxes[i];
    for (size_t j = i + 1; j < boxes.size(); ++j) {
      const Box& b = *boxes[j];
      if (!a.start.empty() && b.start[0] >= a.start[0] + a.count[0]) break;
      if (Overlap(a, b, &common)) {
        return absl::DataLossError(absl::StrCat("the elements ", ToString(common), " are in two parts"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

// The interval is a few boxes; each is cut with each piece, and what they have in common is a strided copy: source
// strides are within the piece, target strides within the whole.
absl::Status ReadJoined(const Shape& shape, int64_t element_size, absl::Span<const JoinedPiece> pieces,
                        const Interval& interval, const PartReader& read, std::byte* out) {
  const std::vector<int64_t> to_strides = RowMajorStrides(shape);
  Box common;
  for (const Box& box : BoxesOf(shape, interval)) {
    for (const JoinedPiece& piece : pieces) {
      if (!Overlap(box, piece.box, &common)) continue;
      StridedBox strided = {piece.first, element_size, {}};
      int64_t to = -interval.begin;
      int64_t from_stride = 1;
      strided.dims.resize(common.start.size());
      for (size_t d = common.start.size(); d-- > 0;) {
        strided.dims[d] = {common.count[d], from_stride, to_strides[d]};
        strided.offset += (common.start[d] - piece.box.start[d]) * from_stride;
        to += common.start[d] * to_strides[d];
        from_stride *= piece.box.count[d];
      }
      strided.offset *= element_size;
      const ByteReader part = [&](int64_t offset, absl::Span<std::byte> bytes) {
        return read(piece.part, offset, bytes);
      };
      FSDP_RETURN_IF_ERROR(ReadStrided(part, std::move(strided), out + to * element_size));
    }
  }
  return absl::OkStatus();
}

// Disjoint pieces that together have as many elements as the tensor cover it.
absl::Status CheckPieces(const Shape& shape, absl::Span<const JoinedPiece> pieces) {
  std::vector<const Box*> boxes;
  int64_t covered = 0;
  for (const JoinedPiece& piece : pieces) {
    if (!IsInside(piece.box, shape)) {
      return absl::DataLossError(
          absl::StrCat("the part ", ToString(piece.box), " is not inside the shape ", shape.ToString()));
    }
    if (Numel(piece.box) == 0) continue;
    boxes.push_back(&piece.box);
    covered += Numel(piece.box);
    if (covered > shape.numel()) break;  // an overlap, which is named below
  }
  FSDP_RETURN_IF_ERROR(CheckDisjoint(std::move(boxes)));
  if (covered == shape.numel()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(shape.numel() - covered, " of ", shape.numel(), " elements are in no part"));
}

}  // namespace fsdp
