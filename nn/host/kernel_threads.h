// SPDX-License-Identifier: Apache-2.0
//
// How many threads oneDNN's OpenMP runtime may use for work of the calling thread.
#ifndef FSDP_NN_HOST_KERNEL_THREADS_H_
#define FSDP_NN_HOST_KERNEL_THREADS_H_

namespace fsdp {

// Whether this program is built with the thread sanitizer, by GCC or Clang.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kUnderThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif

// Sets the count for work that the calling thread starts from now on. OpenMP keeps its thread count per calling thread,
// and a stream's worker starts with all of the machine's cores, so each kernel sets it. Under the thread sanitizer it
// is always 1: the sanitizer does not see the runtime's barriers and would report races that do not exist.
void SetKernelThreads(int threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_KERNEL_THREADS_H_
