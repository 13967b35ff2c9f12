// SPDX-License-Identifier: Apache-2.0
//
// SourcePlace: the place of a call in the source, as std::source_location, which editors' parsers do not have: clang
// has it from 16 on.
#ifndef FSDP_CUDA_EMULATOR_SOURCE_PLACE_H_
#define FSDP_CUDA_EMULATOR_SOURCE_PLACE_H_

#include <source_location>

namespace fsdp {

#ifdef __cpp_lib_source_location
using SourcePlace = std::source_location;
#else
class SourcePlace {
 public:
  static constexpr SourcePlace current() { return {}; }

  const char* file_name() const { return ""; }
  unsigned line() const { return 0; }
  unsigned column() const { return 0; }
};
#endif

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_SOURCE_PLACE_H_
