// SPDX-License-Identifier: Apache-2.0
//
// Sets the page cache before a row is timed: without or with the files of a directory. On a virtual machine the host
// may still cache them.
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
