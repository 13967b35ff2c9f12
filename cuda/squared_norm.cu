// SPDX-License-Identifier: Apache-2.0
//
// Blocks are assigned to the tensors by their sizes, so that each has about the same number of packs:
//
//   sources        |------- a -------|- b -|c|------------- d -------------|
//   partial sums   0      1      2   3     4 5      6      7      8      9       one a block
//   result         += all of them, by the threads of a single block, in a fixed order
//
// Every element is squared and added in float64. That does not cost time: the kernel waits for memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/slice_batch.h"
#include "fsdp/cuda/squared_norm.h"

namespace fsdp {
namespace {

// A block has at least 8 packs for each thread. A GPU is full with this many blocks, and more of them would only make
// more partial sums.
constexpr int64_t kLeastPacks = 8 * kThreads;
constexpr int64_t kEnoughBlocks = 2048;

// The last step's only block.
constexpr int kLastThreads = 512;

template <typename T>
struct SquaresSlice {
  static constexpr int kPack = kPackBytes / sizeof(T);

  const T* source;
  PackedRange range;

  template <int N>
  __device__ double SumOfSquares(int64_t i) const {
    const Pack<T, N> pack = LoadPack<N>(source + i);
    double sum = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double value = Widen<double>(pack.at[k]);
      sum += value * value;
    }
    return sum;
  }
};

// A block's sum is partial_sums[block]. Unrolled, so that several loads are under way.
template <typename T>
__global__ void SumSquares(SliceBatch<SquaresSlice<T>> batch, double* partial_sums) {
  constexpr int kPack = SquaresSlice<T>::kPack;
  const SliceShare share = ShareOfThread(batch);
  const SquaresSlice<T> slice = batch.slices[share.slice];
  const PackedRange& range = slice.range;
  double sum = 0;
#pragma unroll 4
  for (int64_t pack = share.first; pack < range.packs; pack += share.step) {
    sum += slice.template SumOfSquares<kPack>(range.head + pack * kPack);
  }
  for (int64_t j = share.first; j < range.numel - range.packs * kPack; j += share.step) {
    sum += slice.template SumOfSquares<1>(j < range.head ? j : j + range.packs * kPack);
  }
  sum = BlockSum<kThreads>(sum, SharedMemory<WarpSums<double, kThreads>>());
  if (threadIdx.x == 0) partial_sums[blockIdx.x] = sum;
}

// A single block adds all partial sums, so that the order does not depend on which block ends first.
__global__ void AddPartialSums(const double* partial_sums, int64_t count, float* result) {
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += kLastThreads) own += partial_sums[i];
  const double sum = BlockSum<kLastThreads>(own, SharedMemory<WarpSums<double, kLastThreads>>());
  if (threadIdx.x == 0) *result = static_cast<float>(static_cast<double>(*result) + sum);
}

// The number of packs, of any dtype, per block: depends only on the sizes.
int64_t PacksOfBlock(const std::vector<Tensor>& sources) {
  int64_t packs = 0;
  for (const Tensor& source : sources) packs += source.nbytes() / static_cast<int64_t>(kPackBytes);
  return std::max(kLeastPacks, (packs + kEnoughBlocks - 1) / kEnoughBlocks);
}

// Collects the sources of one dtype and launches them in as few launches as the size of a kernel's parameters allows.
template <typename T>
class SquaresLauncher {
 public:
  using Batch = SliceBatch<SquaresSlice<T>>;
  static_assert(sizeof(Batch) + sizeof(double*) <= kMaxParameterBytes);

  SquaresLauncher(int64_t packs_of_block, CUstream_st* stream) : packs_of_block_(packs_of_block), stream_(stream) {}

  // Returns the place of the next partial sum.
  double* Run(const std::vector<Tensor>& sources, DType dtype, double* partial_sums) {
    for (const Tensor& source : sources) {
      if (source.dtype() != dtype || source.numel() == 0) continue;
      Add(source);
      if (batch_.count == Batch::kMaxSlices) partial_sums = Flush(partial_sums);
    }
    return Flush(partial_sums);
  }

 private:
  // The number of blocks follows from the size of the source, not from its address, which decides which elements are
  // packs.
  void Add(const Tensor& source) {
    constexpr int kPack = SquaresSlice<T>::kPack;
    const int64_t packs = (source.numel() + kPack - 1) / kPack;
    const auto blocks = static_cast<int>((packs + packs_of_block_ - 1) / packs_of_block_);
    batch_.slices[batch_.count] = {source.data_as<const T>(),
                                   MakePackedRange(kPack, source.numel(), {{source.data(), sizeof(T)}})};
    batch_.first_block[batch_.count + 1] = batch_.first_block[batch_.count] + blocks;
    ++batch_.count;
  }

  double* Flush(double* partial_sums) {
    if (batch_.count == 0) return partial_sums;
    const int blocks = batch_.first_block[batch_.count];
    Launch(SumSquares<T>, blocks, kThreads, sizeof(WarpSums<double, kThreads>), stream_, batch_, partial_sums);
    batch_.count = 0;
    return partial_sums + blocks;
  }

  const int64_t packs_of_block_;
  CUstream_st* const stream_;
  Batch batch_ = {};
};

}  // namespace

// Each source takes at most one block beyond its share of kEnoughBlocks.
int64_t MaxPartialSums(size_t sources) { return kEnoughBlocks + static_cast<int64_t>(2 * sources); }

void CudaSquaredNorm(const std::vector<Tensor>& sources, const Tensor& result, double* partial_sums,
                     CUstream_st* stream) {
  const int64_t packs = PacksOfBlock(sources);
  double* end = partial_sums;
  end = SquaresLauncher<double>(packs, stream).Run(sources, DType::kFloat64, end);
  end = SquaresLauncher<float>(packs, stream).Run(sources, DType::kFloat32, end);
  end = SquaresLauncher<__nv_bfloat16>(packs, stream).Run(sources, DType::kBFloat16, end);
  end = SquaresLauncher<__half>(packs, stream).Run(sources, DType::kFloat16, end);
  Launch(AddPartialSums, 1, kLastThreads, sizeof(WarpSums<double, kLastThreads>), stream, partial_sums,
         static_cast<int64_t>(end - partial_sums), result.data_as<float>());
}

}  // namespace fsdp
