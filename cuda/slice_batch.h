// SPDX-License-Identifier: Apache-2.0
//
// SliceBatch: one launch for many slices of different lengths, each cut into packs by a PackedRange. A block works on
// one slice. A launch costs microseconds, which is more than a small slice takes; so the slices are passed in the
// kernel's parameters, without a copy to the device. For .cu files.
#ifndef FSDP_CUDA_SLICE_BATCH_H_
#define FSDP_CUDA_SLICE_BATCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"

namespace fsdp {

// The least number of packs of a block, so that a small slice does not take many blocks.
constexpr int64_t kPacksPerSliceBlock = 4 * kThreads;

// The size of a kernel's parameters that every GPU accepts.
constexpr size_t kMaxParameterBytes = 4096;

// `Slice` has kPack, a PackedRange `range`, and a __device__ template <int N> Run(int64_t i), which processes its
// elements [i, i + N). It is a trivial type, because the batch is passed as a parameter, byte by byte. At most
// kMaxSlices slices; the first `count` are set.
template <typename Slice>
struct SliceBatch {
  // As many as fit into a kernel's parameters.
  static constexpr int kMaxSlices = (kMaxParameterBytes - 16) / (sizeof(Slice) + sizeof(int));

  Slice slices[kMaxSlices];
  int first_block[kMaxSlices + 1];  // of each slice; then the number of blocks
  int count;
};

// A thread's part of a slice: packs, or single elements, `first`, first + step, ... All threads of the slice's blocks
// share its work.
struct SliceShare {
  int slice;  // in the batch
  int64_t first;
  int64_t step;
};

// Block b belongs to the last slice whose first_block is at or before b; a linear search, because there are few slices.
template <typename Slice>
__device__ inline SliceShare ShareOfThread(const SliceBatch<Slice>& batch) {
  const int block = static_cast<int>(blockIdx.x);
  int i = 0;
  while (block >= batch.first_block[i + 1]) ++i;
  return {i, static_cast<int64_t>(block - batch.first_block[i]) * kThreads + threadIdx.x,
          static_cast<int64_t>(batch.first_block[i + 1] - batch.first_block[i]) * kThreads};
}

// Threads of a slice step over its packs, then over its single elements, by the number of threads of the slice.
template <typename Slice>
__global__ void RunSlices(SliceBatch<Slice> batch) {
  const SliceShare share = ShareOfThread(batch);
  const Slice& slice = batch.slices[share.slice];
  const PackedRange& range = slice.range;
  for (int64_t pack = share.first; pack < range.packs; pack += share.step) {
    slice.template Run<Slice::kPack>(range.head + pack * Slice::kPack);
  }
  for (int64_t j = share.first; j < range.numel - range.packs * Slice::kPack; j += share.step) {
    slice.template Run<1>(j < range.head ? j : j + range.packs * Slice::kPack);
  }
}

// Collects slices and launches them, in as few launches as the size of a kernel's parameters allows. Call Flush at the
// end. The memory of the slices must live until the kernels have run. Used by one thread.
template <typename Slice>
class SliceLauncher {
 public:
  // Launches go to `stream`.
  explicit SliceLauncher(CUstream_st* stream) : stream_(stream) {}

  // Adds a slice, and launches when the batch is full. Skips an empty slice.
  void Add(const Slice& slice) {
    if (slice.range.numel == 0) return;
    batch_.slices[batch_.count] = slice;
    // The number of blocks follows from the number of threads with work: at least one and at most kMaxBlocks.
    const int64_t work = slice.range.threads(Slice::kPack);
    const int64_t blocks = std::clamp<int64_t>((work + kPacksPerSliceBlock - 1) / kPacksPerSliceBlock, 1, kMaxBlocks);
    batch_.first_block[batch_.count + 1] = batch_.first_block[batch_.count] + static_cast<int>(blocks);
    if (++batch_.count == SliceBatch<Slice>::kMaxSlices) Flush();
  }

  // Launches the slices since the last launch. An error becomes the thread's last one (CudaLaunchStatus). Does nothing
  // if no slice was added.
  void Flush() {
    // The batch is a parameter of the kernel, and all of it is copied, including the unused part.
    static_assert(sizeof(batch_) <= kMaxParameterBytes);
    if (batch_.count > 0) Launch(RunSlices<Slice>, batch_.first_block[batch_.count], kThreads, 0, stream_, batch_);
    batch_.count = 0;
  }

 private:
  CUstream_st* const stream_;
  SliceBatch<Slice> batch_ = {};
};

}  // namespace fsdp

#endif  // FSDP_CUDA_SLICE_BATCH_H_
