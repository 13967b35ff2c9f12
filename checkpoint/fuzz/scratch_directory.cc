// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/fuzz/scratch_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"

namespace fsdp {

ScratchDirectory::ScratchDirectory() {
  std::error_code error;
  const bool has_memory = std::filesystem::is_directory("/dev/shm", error);
  path_ = absl::StrCat(has_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string(),
                       "/fuzz_checkpoint.XXXXXX");
  // A unique name: several fuzzers may run on one machine.
  Check(mkdtemp(path_.data()) != nullptr, "no directory for an input");
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code error;
  // Errors are ignored: a destructor must not throw, and a leftover costs only memory.
  std::filesystem::remove_all(path_, error);
}

std::string ScratchDirectory::operator/(std::string_view name) const {
  return absl::StrCat(path_, "/", absl::string_view(name.data(), name.size()));
}

std::string ScratchDirectory::Write(std::string_view name, std::string_view bytes) const {
  const std::string path = *this / name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Check(file.good(), "an input cannot be written");
  return path;
}

}  // namespace fsdp
