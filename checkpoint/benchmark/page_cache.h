// SPDX-License-Identifier: Apache-2.0
//
// The page cache before a row is timed: without the files of a directory, or with them. On a virtual machine the host
// may still have them cached.
#ifndef FSDP_CHECKPOINT_BENCHMARK_PAGE_CACHE_H_
#define FSDP_CHECKPOINT_BENCHMARK_PAGE_CACHE_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// Removes all files below `directory` from the page cache; pages that are not on disk yet stay. Needs no privilege.
absl::Status DropFromPageCache(const std::string& directory);

// Reads all files below `directory` once.
absl::Status ReadIntoPageCache(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_PAGE_CACHE_H_
