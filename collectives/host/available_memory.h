// SPDX-License-Identifier: Apache-2.0
//
// The memory that this process can still get. With overcommit the kernel does not fail an allocation but kills a
// process when memory runs out; so allocations that obviously exceed the memory are refused in advance.
#ifndef FSDP_COLLECTIVES_HOST_AVAILABLE_MEMORY_H_
#define FSDP_COLLECTIVES_HOST_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace fsdp {

// Free or reclaimable memory of the host, and swap, or the rest of this process's cgroup if that is less.
int64_t AvailableMemoryBytes();

// The rest of a cgroup's memory, from the texts of its files: the limit, the usage, and memory.stat, whose file pages
// can be reclaimed. The largest number if there is no limit ("max", or a missing file, which is empty).
int64_t CgroupAvailableBytes(const std::string& limit, const std::string& usage, const std::string& stat);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_AVAILABLE_MEMORY_H_
