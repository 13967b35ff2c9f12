// SPDX-License-Identifier: Apache-2.0
//
// ReadFile: reads a file in a test, in which an error shows as a difference from the expected bytes.
#ifndef FSDP_BASE_FILE_TESTUTIL_H_
#define FSDP_BASE_FILE_TESTUTIL_H_

#include <fstream>
#include <iterator>
#include <string>

namespace fsdp {

// All bytes of a file; empty if it cannot be read. A test that must distinguish the two checks that the file exists.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace fsdp

#endif  // FSDP_BASE_FILE_TESTUTIL_H_
