// SPDX-License-Identifier: Apache-2.0
//
// ScratchDirectory: a new directory for one input, in memory if /dev/shm exists, since fuzzers write thousands of
// checkpoints a minute and saves wait for the disk. Removed by the destructor.
#ifndef FSDP_CHECKPOINT_FUZZ_SCRATCH_DIRECTORY_H_
#define FSDP_CHECKPOINT_FUZZ_SCRATCH_DIRECTORY_H_

#include <string>
#include <string_view>

namespace fsdp {

class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  // The path of `name`, which need not exist.
  std::string operator/(std::string_view name) const;

  // Writes a file, with the directories above it, and returns its path.
  std::string Write(std::string_view name, std::string_view bytes) const;

 private:
  std::string path_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_SCRATCH_DIRECTORY_H_
