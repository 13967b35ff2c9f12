// SPDX-License-Identifier: Apache-2.0
//
// The kernel is plain loops over blocks that stay in the L1 cache; the compiler vectorises them once per target (BUILD
// gives this file -O3). Blocks make the loops free of aliasing: rows are read, `sums` is written, and only the finished
// block goes to the destination, which may be one of the rows. All arithmetic is IEEE and elementwise, with contraction
// off, so the width of the vectors cannot change a bit.
//
// A large destination is written around the caches (non-temporal stores): without reading what is overwritten, two rows
// of 128 MiB take 25 ms instead of 39.
#include "fsdp/collectives/host/reduce_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace fsdp {
namespace {

constexpr int64_t kBlock = 256;  // elements; small, so that the CPU reads the next block while it writes this one

// How far ahead rows are prefetched, in elements. The prefetchers of the hardware stop at the end of each 4 KiB page.
constexpr int64_t kAhead = 2 * kBlock;
constexpr int64_t kLine = 64;

// Destinations of at least this size bypass the caches, which would not keep them anyway.
constexpr int64_t kStreamBytes = 4 << 20;

// Copies a finished block. A plain memcpy, or one that writes around the caches.
using CopyBlock = void (*)(std::byte* destination, const std::byte* source, int64_t nbytes);

void CopyPlainly(std::byte* destination, const std::byte* source, int64_t nbytes) {
  std::memcpy(destination, source, static_cast<size_t>(nbytes));
}

#if defined(__x86_64__)
// Bytes before the next address that is a multiple of `alignment`.
int64_t HeadBytes(const std::byte* address, int64_t alignment, int64_t nbytes) {
  return std::min<int64_t>(-reinterpret_cast<intptr_t>(address) & (alignment - 1), nbytes);
}

void StreamBy16(std::byte* destination, const std::byte* source, int64_t nbytes) {
  int64_t at = HeadBytes(destination, 16, nbytes);
  CopyPlainly(destination, source, at);
  for (; at + 16 <= nbytes; at += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at)));
  }
  CopyPlainly(destination + at, source + at, nbytes - at);
}

[[gnu::target("avx512f")]] void StreamBy64(std::byte* destination, const std::byte* source, int64_t nbytes) {
  int64_t at = HeadBytes(destination, 64, nbytes);
  CopyPlainly(destination, source, at);
  for (; at + 64 <= nbytes; at += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + at), _mm512_loadu_si512(source + at));
  }
  CopyPlainly(destination + at, source + at, nbytes - at);
}

// Store fence: makes earlier non-temporal stores visible before any later store.
void FinishStreaming() { _mm_sfence(); }
#else
void FinishStreaming() {}
#endif

// True if the destination is large and is not one of the rows: a row was just read, so its lines are already in the
// cache.
bool ShouldStream(const Reduction& args, int64_t nbytes) {
  return nbytes >= kStreamBytes && std::find(args.rows.begin(), args.rows.end(), args.destination) == args.rows.end();
}

// An element whose sums have its own type.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static T ToSum(T value) { return value; }
  static T FromSum(T value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Sum = float;

  [[gnu::always_inline]] static float ToSum(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  // Nearest even; NaN keeps its sign and becomes quiet.
  [[gnu::always_inline]] static uint16_t FromSum(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Sum = float;

  // The exponent is rebased by a multiplication, which normalises subnormals too; infinity and NaN are put right after.
  [[gnu::always_inline]] static float ToSum(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
    const uint32_t bits = magnitude >= (0x7c00u << 13) ? (magnitude | 0x7f800000u) : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000) << 16));
  }

  // Nearest even. Below 2^-14 the addition of 0.5 lets the FPU round at the subnormals' last place.
  [[gnu::always_inline]] static uint16_t FromSum(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    return static_cast<uint16_t>(sign | (magnitude >= (143u << 23) ? special : finite));
  }
};

template <ReduceOp op, typename T>
[[gnu::always_inline]] inline T Combine(T a, T b) {
  if constexpr (op == ReduceOp::kMin) {
    // b != b is true for NaN only: a NaN in either operand wins, as the header promises. `|` and not `||`, so that it
    // vectorises.
    return (b < a) | (b != b) ? b : a;
  } else if constexpr (op == ReduceOp::kMax) {
    return (b > a) | (b != b) ? b : a;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned, because the sum may wrap, and signed overflow is undefined.
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

// Prefetches a line that will be written. If a peer's cache has it too, requesting it for writing saves a second
// request.
[[gnu::always_inline]] inline void PrefetchForWriting(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // the builtin needs a target for it
#else
  __builtin_prefetch(line, 1);
#endif
}

// The block of the row at `begin`; prefetches a later one.
template <typename Stored>
[[gnu::always_inline]] inline const Stored* BlockOf(const Reduction& args, size_t row, int64_t begin) {
  const Stored* const block = reinterpret_cast<const Stored*>(args.rows[row]) + begin;
  const int64_t end = std::min(begin + kAhead + kBlock, args.numel) - begin;
  for (int64_t j = kAhead; j < end; j += kLine / static_cast<int64_t>(sizeof(Stored))) {
    if (args.rows[row] == args.destination) {
      PrefetchForWriting(block + j);
    } else {
      __builtin_prefetch(block + j);
    }
  }
  return block;
}

template <typename Element, ReduceOp op>
[[gnu::always_inline]] inline void SumBlock(const Reduction& args, int64_t begin, int64_t count,
                                            typename Element::Sum* __restrict sums) {
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  const size_t n = args.rows.size();
  const Stored* const first = BlockOf<Stored>(args, 0, begin);
  size_t r = 1;
  // Loops over the first one or two rows are separate, so that `sums` need not be initialised and read once more.
  if (args.sum_before != nullptr) {
    const Sum* const before = reinterpret_cast<const Sum*>(args.sum_before) + begin;
    for (int64_t j = 0; j < count; ++j) {
      sums[j] = Combine<op>(before[j], Element::ToSum(first[j]));
    }
  } else if (n == 1) {
    for (int64_t j = 0; j < count; ++j) {
      sums[j] = Element::ToSum(first[j]);
    }
  } else {
    const Stored* const second = BlockOf<Stored>(args, 1, begin);
    for (int64_t j = 0; j < count; ++j) {
      sums[j] = Combine<op>(Element::ToSum(first[j]), Element::ToSum(second[j]));
    }
    r = 2;
  }
  for (; r < n; ++r) {
    const Stored* const row = BlockOf<Stored>(args, r, begin);
    for (int64_t j = 0; j < count; ++j) {
      sums[j] = Combine<op>(sums[j], Element::ToSum(row[j]));
    }
  }
  if constexpr (op == ReduceOp::kAvg) {
    if (args.is_continued) return;
    const auto divisor = static_cast<Sum>(args.rows_in_all == 0 ? static_cast<int64_t>(n) : args.rows_in_all);
    for (int64_t j = 0; j < count; ++j) {
      sums[j] /= divisor;
    }
  }
}

template <typename Element, ReduceOp op>
[[gnu::always_inline]] inline void Reduce(const Reduction& args, CopyBlock stream) {
  using Stored = typename Element::Stored;
  alignas(64) typename Element::Sum sums[kBlock];
  alignas(64) Stored rounded[kBlock];
  // Decided once per call: blocks of one destination are all streamed, or none is.
  const CopyBlock copy = ShouldStream(args, args.numel * sizeof(Stored)) ? stream : CopyPlainly;
  for (int64_t begin = 0; begin < args.numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, args.numel - begin);
    SumBlock<Element, op>(args, begin, count, sums);
    if (args.is_continued) {
      constexpr int64_t kWidth = sizeof(typename Element::Sum);
      CopyPlainly(args.destination + begin * kWidth, reinterpret_cast<const std::byte*>(sums), count * kWidth);
      continue;
    }
    const void* block = sums;
    if constexpr (!std::is_same_v<Stored, typename Element::Sum>) {
      for (int64_t j = 0; j < count; ++j) {
        rounded[j] = Element::FromSum(sums[j]);
      }
      block = rounded;
    }
    copy(args.destination + begin * sizeof(Stored), static_cast<const std::byte*>(block), count * sizeof(Stored));
  }
  FinishStreaming();
}

// The kernel is compiled once for each target.
#if defined(__x86_64__)
template <typename Element, ReduceOp op>
void ReduceBaseline(const Reduction& args) {
  Reduce<Element, op>(args, StreamBy16);
}

template <typename Element, ReduceOp op>
[[gnu::target("avx2")]] void ReduceAvx2(const Reduction& args) {
  Reduce<Element, op>(args, StreamBy16);
}

template <typename Element, ReduceOp op>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void ReduceAvx512(const Reduction& args) {
  Reduce<Element, op>(args, StreamBy64);
}
#else
template <typename Element, ReduceOp op>
void ReduceBaseline(const Reduction& args) {
  Reduce<Element, op>(args, CopyPlainly);
}
#endif

template <typename Element, ReduceOp op>
void ReduceOnTarget(ReduceTarget target, const Reduction& args) {
  switch (target) {
#if defined(__x86_64__)
    case ReduceTarget::kAvx512:
      return ReduceAvx512<Element, op>(args);
    case ReduceTarget::kAvx2:
      return ReduceAvx2<Element, op>(args);
#endif
    default:
      return ReduceBaseline<Element, op>(args);
  }
}

template <typename Element>
void ReduceElements(ReduceTarget target, ReduceOp op, const Reduction& args) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceOnTarget<Element, ReduceOp::kSum>(target, args);
    case ReduceOp::kAvg:
      return ReduceOnTarget<Element, ReduceOp::kAvg>(target, args);
    case ReduceOp::kMin:
      return ReduceOnTarget<Element, ReduceOp::kMin>(target, args);
    case ReduceOp::kMax:
      return ReduceOnTarget<Element, ReduceOp::kMax>(target, args);
  }
}

ReduceTarget BestReduceTarget() {
  for (const ReduceTarget target : {ReduceTarget::kAvx512, ReduceTarget::kAvx2}) {
    if (IsSupported(target)) {
      return target;
    }
  }
  return ReduceTarget::kBaseline;
}

}  // namespace

bool IsSupported(ReduceTarget target) {
#if defined(__x86_64__)
  switch (target) {
    case ReduceTarget::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case ReduceTarget::kAvx2:
      return __builtin_cpu_supports("avx2");
    case ReduceTarget::kBaseline:
      break;
  }
#endif
  return target == ReduceTarget::kBaseline;
}

int64_t SumSizeOf(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? sizeof(float) : SizeOf(dtype);
}

void ReduceRows(DType dtype, ReduceOp op, const Reduction& reduction) {
  // The best target is fixed at the first call; all targets give the same bits, so the choice is not visible.
  static const ReduceTarget best = BestReduceTarget();
  ReduceRowsOn(best, dtype, op, reduction);
}

void ReduceRowsOn(ReduceTarget target, DType dtype, ReduceOp op, const Reduction& reduction) {
  switch (dtype) {
    case DType::kFloat64:
      return ReduceElements<Plain<double>>(target, op, reduction);
    case DType::kFloat32:
      return ReduceElements<Plain<float>>(target, op, reduction);
    case DType::kBFloat16:
      return ReduceElements<BFloat16>(target, op, reduction);
    case DType::kFloat16:
      return ReduceElements<Float16>(target, op, reduction);
    case DType::kInt64:
      return ReduceElements<Plain<int64_t>>(target, op, reduction);
    case DType::kInt32:
      return ReduceElements<Plain<int32_t>>(target, op, reduction);
    default:
      return;  // refused by CheckReduceScatter
  }
}

}  // namespace fsdp
