// SPDX-License-Identifier: Apache-2.0
//
// The threads of a kernel on the host: the OpenMP runtime's, which oneDNN uses too, so that a step has one team of
// threads for each stream and not two that compete for the cores.
#ifndef FSDP_TENSOR_KERNEL_THREADS_H_
#define FSDP_TENSOR_KERNEL_THREADS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// True if this program is built with the thread sanitizer, by GCC or Clang.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kUnderThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif

// Sets the count for work of OpenMP that the calling thread starts from now on. OpenMP keeps its thread count per
// calling thread, and a stream's worker starts with all of the machine's cores, so each kernel sets it. Under the
// thread sanitizer it is always 1: the sanitizer does not see the runtime's barriers and would report races that do not
// exist.
void SetKernelThreads(int threads);

// The number of pieces that ParallelFor makes: at most `threads`, none smaller than `grain` except the last. 0 if n is
// 0.
int NumPieces(int threads, int64_t n, int64_t grain);

// Calls body(piece, interval) for consecutive intervals of [0, n), each on its own thread, piece 0 on the calling one,
// and returns after all. Intervals begin at multiples of `grain` and depend only on the arguments. `grain` is at least
// 1, and large enough to be worth a thread, which takes some microseconds to begin. `body` must not throw. In a call
// within `body` everything runs on one thread.
void ParallelFor(int threads, int64_t n, int64_t grain, absl::FunctionRef<void(int piece, Interval)> body);

// Calls body(piece, i) for each i of [0, n), in order within a piece, as ParallelFor with a grain of 1. A piece ends at
// its first error; the error of the lowest piece is returned.
absl::Status ParallelForEach(int threads, int64_t n, absl::FunctionRef<absl::Status(int piece, int64_t i)> body);

}  // namespace fsdp

#endif  // FSDP_TENSOR_KERNEL_THREADS_H_
