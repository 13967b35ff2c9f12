// SPDX-License-Identifier: Apache-2.0
//
// Replaces the functions of three objects in Abseil's archives that cannot be part of a shared library: distributions
// compile them for programs, so their thread-local variables have addresses that only a program can resolve. Same names
// and meaning as in Abseil's headers, for one release of it: the names of other releases differ, and bazel/link.bzl
// then links their shared libraries.
#include "absl/base/config.h"

#if ABSL_LTS_RELEASE_VERSION == 20220623

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "absl/base/internal/raw_logging.h"
#include "absl/base/internal/sysinfo.h"
#include "absl/container/internal/raw_hash_set.h"
#include "absl/strings/internal/cordz_functions.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

namespace base_internal {

// Used only for profiles of a mutex's waiters, which are not enabled here.
double NominalCPUFrequency() { return 1.0; }

int NumCPUs() {
  static const int count = static_cast<int>(std::thread::hardware_concurrency());
  return count;
}

pid_t GetTID() { return static_cast<pid_t>(syscall(SYS_gettid)); }

pid_t GetCachedTID() {
  static thread_local const pid_t thread_id = GetTID();
  return thread_id;
}

}  // namespace base_internal

namespace container_internal {

alignas(16) ABSL_CONST_INIT const ctrl_t kEmptyGroup[16] = {
    ctrl_t::kSentinel, ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty,
    ctrl_t::kEmpty,    ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty,
    ctrl_t::kEmpty,    ctrl_t::kEmpty, ctrl_t::kEmpty, ctrl_t::kEmpty};

// Varies the order of a table's elements, so that programs cannot depend on it. Abseil counts per thread.
bool ShouldInsertBackwards(size_t hash, const ctrl_t* ctrl) {
  static std::atomic<size_t> counter = 0;
  return (H1(hash, ctrl) ^ counter.fetch_add(1, std::memory_order_relaxed)) % 13 > 6;
}

void ConvertDeletedToEmptyAndFullToDeleted(ctrl_t* ctrl, size_t capacity) {
  for (ctrl_t* pos = ctrl; pos < ctrl + capacity; pos += Group::kWidth) {
    Group{pos}.ConvertSpecialToEmptyAndFullToDeleted(pos);
  }
  // The first bytes are repeated after the last, so that a whole group can be read there.
  std::memcpy(ctrl + capacity + 1, ctrl, NumClonedBytes());
  ctrl[capacity] = ctrl_t::kSentinel;
}

// The instance that the header declares extern.
template FindInfo find_first_non_full(const ctrl_t*, size_t, size_t);

void HashTableSizeOverflow() {
  ABSL_RAW_LOG(FATAL, "Hash table size overflow");
  std::abort();
}

}  // namespace container_internal

// Sampling of Cords for a profiler: disabled.
namespace cord_internal {

ABSL_CONST_INIT thread_local int64_t cordz_next_sample = std::numeric_limits<int64_t>::max();

int32_t get_cordz_mean_interval() { return 0; }

void set_cordz_mean_interval(int32_t /*mean_interval*/) {}

bool cordz_should_profile_slow() {
  cordz_next_sample = std::numeric_limits<int64_t>::max();
  return false;
}

void cordz_set_next_sample_for_testing(int64_t next_sample) { cordz_next_sample = next_sample; }

}  // namespace cord_internal

ABSL_NAMESPACE_END
}  // namespace absl

#endif  // ABSL_LTS_RELEASE_VERSION
