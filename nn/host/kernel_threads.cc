// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/host/kernel_threads.h"

#include <omp.h>

// ThreadSanitizer asks for this by its name. oneDNN is not instrumented, so the locks of its primitive cache, made on
// first use, look like races.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }

namespace fsdp {

void SetKernelThreads(int threads) { omp_set_num_threads(kUnderThreadSanitizer ? 1 : threads); }

}  // namespace fsdp
