// SPDX-License-Identifier: Apache-2.0
//
// ExpectCheapDecoding: the rule of decode_budget.h, measured: decoding a text, whether it is accepted or refused, costs
// at most four times the text and 64 MiB of resident memory, the text included.
#ifndef FSDP_CHECKPOINT_SOURCE_DECODE_MEMORY_TESTUTIL_H_
#define FSDP_CHECKPOINT_SOURCE_DECODE_MEMORY_TESTUTIL_H_

#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace fsdp {

// The texts of a test: large enough that the 64 MiB do not hide a wrong factor.
inline constexpr size_t kCostlyTextBytes = size_t{32} << 20;

// This process's peak resident memory since ResetPeak, in bytes.
inline int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

// Returns the current resident memory, or -1 if the kernel does not reset the peak.
inline int64_t ResetPeak() {
  malloc_trim(0);
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  return reset.good() ? PeakBytes() : -1;
}

// False with a sanitizer, which takes memory of its own.
inline bool CanMeasurePeak() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return ResetPeak() >= 0;
#endif
}

// `before`, `item` many times with commas between, and `after`.
inline std::string ManyItems(std::string_view before, absl::FunctionRef<std::string(int)> item,
                             std::string_view after) {
  std::string text(before);
  text.reserve(kCostlyTextBytes + 1000);
  for (int i = 0; text.size() < kCostlyTextBytes; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", item(i));
  return text.append(after);
}

// `decode` must free what it made before it returns.
inline void ExpectCheapDecoding(const std::string& what, const std::string& text, bool is_accepted,
                                absl::FunctionRef<absl::Status(std::string_view)> decode) {
  constexpr int64_t kAllowance = int64_t{64} << 20;
  const auto nbytes = static_cast<int64_t>(text.size());
  const int64_t before = ResetPeak() - nbytes;
  const absl::Status status = decode(text);
  EXPECT_LE(PeakBytes() - before, 4 * nbytes + kAllowance) << what << " of " << nbytes << " bytes";
  EXPECT_GE(text.size(), kCostlyTextBytes * 9 / 10) << what;
  EXPECT_EQ(status.ok(), is_accepted) << what << ": " << status;
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_DECODE_MEMORY_TESTUTIL_H_
