// SPDX-License-Identifier: Apache-2.0
//
// The page cache before a row is timed: without the files of a directory, or with them. A host below this machine may
// have them still.
#ifndef FSDP_CHECKPOINT_BENCHMARK_PAGE_CACHE_H_
#define FSDP_CHECKPOINT_BENCHMARK_PAGE_CACHE_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// Takes all files below `directory` out of the page cache.
absl::Status DropFromPageCache(const std::string& directory);

// Reads them into it.
absl::Status ReadIntoPageCache(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_PAGE_CACHE_H_
