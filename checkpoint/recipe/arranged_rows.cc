// SPDX-License-Identifier: Apache-2.0
//
// The inputs of an operation are read in runs that are as long as possible: whole rows of several rows at a time, which
// are then put in order in memory. Rows that are longer than the scratch memory are read in place.
#include "fsdp/checkpoint/recipe/arranged_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kScratchBytes = int64_t{4} << 20;

// A tensor of rows, whose Read is made of the reads of whole rows and of a part of one.
class RowsTensor : public ArrangedTensor {
 public:
  explicit RowsTensor(int64_t width) : width_(width) {}

  absl::Status Read(const Interval& interval, std::byte* out) const final {
    const int64_t size = SizeOf(dtype);
    for (int64_t begin = interval.begin; begin < interval.end;) {
      const int64_t row = begin / width_;
      const int64_t first = begin % width_;
      const int64_t rows = std::min((interval.end - begin) / width_, RowsAtOnce());
      std::byte* const at = out + (begin - interval.begin) * size;
      if (first == 0 && rows > 0) {
        FSDP_RETURN_IF_ERROR(ReadRows(row, rows, at));
        begin += rows * width_;
        continue;
      }
      const int64_t last = std::min(width_, first + interval.end - begin);
      FSDP_RETURN_IF_ERROR(ReadPart(row, {first, last}, at));
      begin += last - first;
    }
    return absl::OkStatus();
  }

 protected:
  int64_t width() const { return width_; }

  // The most rows that ReadRows may be asked for; 0: none.
  virtual int64_t RowsAtOnce() const = 0;
  virtual absl::Status ReadRows(int64_t row, int64_t rows, std::byte* out) const = 0;
  virtual absl::Status ReadPart(int64_t row, const Interval& columns, std::byte* out) const = 0;

 private:
  const int64_t width_;  // not 0
};

class JoinedTensor final : public RowsTensor {
 public:
  JoinedTensor(std::vector<ArrangedInput> inputs, std::vector<int64_t> widths)
      : RowsTensor(Sum(widths)), inputs_(std::move(inputs)), widths_(std::move(widths)) {}

 private:
  // The sum: the width of a row.
  static int64_t Sum(const std::vector<int64_t>& widths) {
    int64_t sum = 0;
    for (const int64_t width : widths) sum += width;
    return sum;
  }

  int64_t RowsAtOnce() const override { return kScratchBytes / (width() * SizeOf(dtype)); }

  absl::Status ReadRows(int64_t row, int64_t rows, std::byte* out) const override {
    const int64_t size = SizeOf(dtype);
    std::vector<std::byte> scratch;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const int64_t nbytes = widths_[i] * size;
      scratch.resize(rows * nbytes);
      FSDP_RETURN_IF_ERROR(inputs_[i]->Read({row * widths_[i], (row + rows) * widths_[i]}, scratch.data()));
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(out + r * width() * size, scratch.data() + r * nbytes, nbytes);
      }
      out += nbytes;
    }
    return absl::OkStatus();
  }

  absl::Status ReadPart(int64_t row, const Interval& columns, std::byte* out) const override {
    int64_t begin = 0;
    for (size_t i = 0; i < inputs_.size(); begin += widths_[i], ++i) {
      const int64_t from = std::max(columns.begin, begin);
      const int64_t to = std::min(columns.end, begin + widths_[i]);
      if (from >= to) continue;
      const int64_t start = row * widths_[i] - begin;
      FSDP_RETURN_IF_ERROR(inputs_[i]->Read({start + from, start + to}, out + (from - columns.begin) * SizeOf(dtype)));
    }
    return absl::OkStatus();
  }

  const std::vector<ArrangedInput> inputs_;
  const std::vector<int64_t> widths_;  // of a row of each input
};

class CutTensor final : public RowsTensor {
 public:
  // `width` elements from `begin` of each row of `input_width`.
  CutTensor(ArrangedInput input, int64_t input_width, int64_t begin, int64_t width)
      : RowsTensor(width), input_(std::move(input)), input_width_(input_width), begin_(begin) {}

 private:
  // A long part of a row is read by itself.
  int64_t RowsAtOnce() const override {
    constexpr int64_t kLongBytes = int64_t{16} << 10;
    return width() * SizeOf(dtype) >= kLongBytes ? 0 : kScratchBytes / (input_width_ * SizeOf(dtype));
  }

  absl::Status ReadRows(int64_t row, int64_t rows, std::byte* out) const override {
    const int64_t size = SizeOf(dtype);
    std::vector<std::byte> scratch(rows * input_width_ * size);
    FSDP_RETURN_IF_ERROR(input_->Read({row * input_width_, (row + rows) * input_width_}, scratch.data()));
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(out + r * width() * size, scratch.data() + (r * input_width_ + begin_) * size, width() * size);
    }
    return absl::OkStatus();
  }

  absl::Status ReadPart(int64_t row, const Interval& columns, std::byte* out) const override {
    const int64_t start = row * input_width_ + begin_;
    return input_->Read({start + columns.begin, start + columns.end}, out);
  }

  const ArrangedInput input_;
  const int64_t input_width_;
  const int64_t begin_;
};

// A row is [middle, a, inner], at one place of outer and b.
class SwappedTensor final : public RowsTensor {
 public:
  SwappedTensor(ArrangedInput input, const SwapShape& sizes)
      : RowsTensor(sizes.middle * sizes.a * sizes.inner), input_(std::move(input)), sizes_(sizes) {}

 private:
  int64_t RowsAtOnce() const override { return std::max<int64_t>(kScratchBytes / (width() * SizeOf(dtype)), 1); }

  // Rows of one slab at a time.
  absl::Status ReadRows(int64_t row, int64_t rows, std::byte* out) const override {
    for (int64_t end = row + rows; row < end;) {
      const int64_t b = row % sizes_.b;
      const int64_t count = std::min(end - row, sizes_.b - b);
      for (int64_t m = 0; m < sizes_.middle; ++m) {
        const Block block = {.outer = row / sizes_.b, .middle = m, .a = {0, sizes_.a}, .b = {b, b + count}};
        FSDP_RETURN_IF_ERROR(ReadBlock(block, out + m * sizes_.a * run()));
      }
      out += count * width() * SizeOf(dtype);
      row += count;
    }
    return absl::OkStatus();
  }

  absl::Status ReadPart(int64_t row, const Interval& columns, std::byte* out) const override {
    for (int64_t at = columns.begin; at < columns.end;) {
      const int64_t m = at / (sizes_.a * sizes_.inner);
      const int64_t a = at / sizes_.inner % sizes_.a;
      const int64_t i = at % sizes_.inner;
      const int64_t b = row % sizes_.b;
      const int64_t runs = std::min((columns.end - at) / sizes_.inner, sizes_.a - a);
      if (i == 0 && runs > 0) {
        const Block block = {.outer = row / sizes_.b, .middle = m, .a = {a, a + runs}, .b = {b, b + 1}};
        FSDP_RETURN_IF_ERROR(ReadBlock(block, out));
        out += runs * run();
        at += runs * sizes_.inner;
        continue;
      }
      const int64_t count = std::min(columns.end - at, sizes_.inner - i);
      const int64_t first = FirstOf(row / sizes_.b, a, m, b) + i;
      FSDP_RETURN_IF_ERROR(input_->Read({first, first + count}, out));
      out += count * SizeOf(dtype);
      at += count;
    }
    return absl::OkStatus();
  }

  // Runs of `inner` elements: of each b, which is a row of the result, the run of each a.
  struct Block {
    int64_t outer = 0;
    int64_t middle = 0;
    Interval a;
    Interval b;
  };

  int64_t run() const { return sizes_.inner * SizeOf(dtype); }  // in bytes

  int64_t FirstOf(int64_t outer, int64_t a, int64_t m, int64_t b) const {
    return outer * sizes_.slab() + ((a * sizes_.middle + m) * sizes_.b + b) * sizes_.inner;
  }

  // The runs of one a follow each other in the input. If they are all that it has of this a, or if that is little, many
  // a are read at a time.
  absl::Status ReadBlock(const Block& block, std::byte* out) const {
    constexpr int64_t kLittleBytes = int64_t{8} << 10;
    const int64_t all = sizes_.b * run();
    const bool is_wide = sizes_.middle == 1 && (block.b.size() == sizes_.b || all <= kLittleBytes);
    const Interval read = is_wide ? Interval{0, sizes_.b} : block.b;
    const int64_t at_once = is_wide ? std::max<int64_t>(kScratchBytes / all, 1) : 1;
    std::vector<std::byte> scratch;
    for (int64_t a = block.a.begin; a < block.a.end; a += at_once) {
      const int64_t count = std::min(at_once, block.a.end - a);
      scratch.resize(count * read.size() * run());
      const int64_t first = FirstOf(block.outer, a, block.middle, read.begin);
      FSDP_RETURN_IF_ERROR(input_->Read({first, first + count * read.size() * sizes_.inner}, scratch.data()));
      for (int64_t b = block.b.begin; b < block.b.end; ++b) {
        std::byte* const to = out + (b - block.b.begin) * width() * SizeOf(dtype) + (a - block.a.begin) * run();
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(to + i * run(), scratch.data() + (i * read.size() + b - read.begin) * run(), run());
        }
      }
    }
    return absl::OkStatus();
  }

  const ArrangedInput input_;
  const SwapShape sizes_;
};

}  // namespace

ArrangedInput JoinRows(std::vector<ArrangedInput> inputs, std::vector<int64_t> widths) {
  return std::make_unique<JoinedTensor>(std::move(inputs), std::move(widths));
}

ArrangedInput CutRows(ArrangedInput input, int64_t input_width, int64_t begin, int64_t width) {
  return std::make_unique<CutTensor>(std::move(input), input_width, begin, width);
}

ArrangedInput SwapAxes(ArrangedInput input, const SwapShape& sizes) {
  return std::make_unique<SwappedTensor>(std::move(input), sizes);
}

}  // namespace fsdp
