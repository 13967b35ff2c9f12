// SPDX-License-Identifier: Apache-2.0
//
// DcpChunks: the chunks of a DCP directory by number, packed into about 40 bytes each: a large run has millions of
// them, and few different boxes. A DcpChunk is built on access.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_CHUNKS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_CHUNKS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "fsdp/tensor/box.h"

namespace fsdp {

// Bytes [offset, offset + nbytes) of a file of the directory: an archive that torch.save wrote. `file` is a plain name:
// it cannot lead out of the directory. end() does not overflow; the length of the file is checked when it is read.
struct DcpSlice {
  std::string file;
  int64_t offset = 0;
  int64_t nbytes = 0;

  int64_t end() const { return offset + nbytes; }
};

// A part of a tensor, and the archive that holds it.
struct DcpChunk {
  Box box;
  DcpSlice slice;
};

// The number of ranks that wrote the files `names`: R of __R_i.distcp counts from 0, and each rank has a file for each
// of its threads, or one for each item. 1 if no file has such a name.
int DcpWorldSize(const std::deque<std::string>& names);

// Lists of integers by number; equal lists are stored once. Movable, not copyable.
class DcpSizes {
 public:
  // The number of the list, which has at most 255 integers. `note`, not negative and below 2^48, is stored with the
  // first of equal lists. Constant time.
  uint32_t Add(absl::Span<const int64_t> sizes, int64_t note = 0);
  int64_t note(uint32_t number) const { return (*values_)[number] >> 8; }
  // Valid until the next Add.
  absl::Span<const int64_t> operator[](uint32_t number) const { return ListAt(*values_, number); }

  // Bytes of memory, including the temporary peak while growing.
  int64_t memory() const;

 private:
  using Values = std::vector<int64_t>;

  // A list is its length, in the low eight bits of a word whose other bits are its note, followed by its integers. Its
  // number is the index of that word.
  static absl::Span<const int64_t> ListAt(const Values& values, uint32_t number) {
    return absl::MakeConstSpan(&values[number] + 1, values[number] & 0xff);
  }

  struct Hash {
    using is_transparent = void;
    const Values* values;
    size_t operator()(absl::Span<const int64_t> sizes) const;
    size_t operator()(uint32_t number) const { return (*this)(ListAt(*values, number)); }
  };
  struct Equal {
    using is_transparent = void;
    const Values* values;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t number, absl::Span<const int64_t> sizes) const { return ListAt(*values, number) == sizes; }
    bool operator()(absl::Span<const int64_t> sizes, uint32_t number) const { return ListAt(*values, number) == sizes; }
  };

  std::unique_ptr<Values> values_ = std::make_unique<Values>();
  absl::flat_hash_set<uint32_t, Hash, Equal> numbers_{0, Hash{values_.get()}, Equal{values_.get()}};
};

// Files and positions in them by number. Movable, not copyable.
class DcpSlices {
 public:
  uint32_t Add(std::string_view file, int64_t offset, int64_t nbytes);
  DcpSlice operator[](uint32_t number) const;
  // The index in files() of its file.
  uint32_t file_of(uint32_t number) const { return slices_[number].file; }
  int64_t offset(uint32_t number) const { return slices_[number].offset; }
  const std::deque<std::string>& files() const { return files_; }

  int64_t memory() const;

 private:
  struct Slice {
    int64_t offset = 0;
    int64_t nbytes = 0;
    uint32_t file = 0;
  };

  std::deque<Slice> slices_;
  std::deque<std::string> files_;
  absl::flat_hash_map<std::string_view, uint32_t> numbers_;  // keyed by the strings of files_, which never move
  int64_t file_bytes_ = 0;
};

// Movable, not copyable.
class DcpChunks {
 public:
  size_t size() const { return chunks_.size(); }
  void Add(const DcpChunk& chunk);
  // The number of a slice that is not a chunk: the archive of a value.
  uint32_t AddSlice(const DcpSlice& slice) { return slices_.Add(slice.file, slice.offset, slice.nbytes); }

  // Adds a chunk by the numbers of its parts in the tables that SetParts receives: those are read first, and chunks are
  // found afterwards.
  void Add(uint32_t start, uint32_t count, uint32_t slice) { chunks_.push_back({start, count, slice}); }
  void SetParts(DcpSizes sizes, DcpSlices slices) {
    sizes_ = std::move(sizes);
    slices_ = std::move(slices);
  }

  DcpChunk operator[](size_t i) const;
  // The parts of its box, one number for each dimension. Valid until the next Add.
  absl::Span<const int64_t> start(size_t i) const { return sizes_[chunks_[i].start]; }
  absl::Span<const int64_t> count(size_t i) const { return sizes_[chunks_[i].count]; }
  DcpSlice slice(size_t i) const { return slices_[chunks_[i].slice]; }
  // Equal for two chunks with the same bytes: the index in slices().files(), and the offset in that file.
  using Place = std::pair<uint32_t, int64_t>;
  Place PlaceOf(size_t i) const { return {slices_.file_of(chunks_[i].slice), slices_.offset(chunks_[i].slice)}; }
  // The archives of values may be slices of the same files.
  const DcpSlices& slices() const { return slices_; }

 private:
  struct Chunk {
    uint32_t start = 0;  // in sizes_
    uint32_t count = 0;  // in sizes_
    uint32_t slice = 0;
  };

  std::deque<Chunk> chunks_;
  DcpSizes sizes_;
  DcpSlices slices_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_CHUNKS_H_
