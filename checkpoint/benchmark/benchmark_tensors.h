// SPDX-License-Identifier: Apache-2.0
//
// BenchmarkTensors: float32 tensors of unequal sizes, one after another, in two pieces of memory: the source of saves
// and the destination of loads. Any rank's part of them is a StateDict whose tensors are views of that memory.
#ifndef FSDP_CHECKPOINT_BENCHMARK_BENCHMARK_TENSORS_H_
#define FSDP_CHECKPOINT_BENCHMARK_BENCHMARK_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/write_queue.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Owns both pieces of memory. Immutable except for the bytes.
class BenchmarkTensors {
 public:
  struct Entry {
    std::string name;
    Shape shape;         // rows of 16
    int64_t offset = 0;  // of its first byte
  };

  // `count` tensors of about `nbytes` in total, with sizes in the ratio 1 : 2 : ... : count.
  BenchmarkTensors(int count, int64_t nbytes);

  const std::vector<Entry>& entries() const { return entries_; }
  int64_t nbytes() const { return nbytes_; }

  // Page-aligned, every page touched, with room for whole pages.
  absl::Span<std::byte> saved() const { return absl::MakeSpan(saved_.get(), nbytes_); }
  absl::Span<std::byte> loaded() const { return absl::MakeSpan(loaded_.get(), nbytes_); }

  // Rank `rank`'s part of the tensors in `memory`, which is saved() or loaded(): dim-0 chunks, or for LOCAL the rank's
  // slice of one flat parameter that consists of all tensors. Does not copy.
  StateDict StateOf(StateDictType type, int world_size, int rank, absl::Span<std::byte> memory) const;

 private:
  std::vector<Entry> entries_;
  int64_t nbytes_ = 0;
  AlignedBlock saved_;
  AlignedBlock loaded_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_BENCHMARK_TENSORS_H_
