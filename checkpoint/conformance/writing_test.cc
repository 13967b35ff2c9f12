// SPDX-License-Identifier: Apache-2.0
//
// Requirements on every writer of a checkpoint format, tested on each of WrittenFormatsUnderTest. convert_crash_test
// tests, on the same formats, that a crash or an error at any storage operation leaves the old contents or the new
// ones.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/conformance/formats_under_test.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class WritingTest : public FormatTest {};

INSTANTIATE_TEST_SUITE_P(Formats, WritingTest, testing::ValuesIn(WrittenFormatsUnderTest()), NameOfFormat);

// A model of one tensor of `nbytes` bytes.
StateDict Bytes(const std::string& name, int64_t nbytes, DType dtype = DType::kInt8) {
  StateDict state;
  state.Set(StateKey::Model(name), ShardedTensor{dtype, Shape({nbytes / SizeOf(dtype)}), {}});
  return state;
}

absl::Status ReadNothing(const StateKey&, const Interval&, void*) { return absl::OkStatus(); }

// Elements of one byte.
absl::Status ReadPattern(const StateKey&, const Interval& interval, void* out) {
  for (int64_t i = 0; i < interval.size(); ++i)
    static_cast<char*>(out)[i] = static_cast<char>((interval.begin + i) * 7);
  return absl::OkStatus();
}

TEST_P(WritingTest, ADTypeIsHeldOrRefusedByNameBeforeAnythingIsThere) {
  for (const DType dtype : AllDTypes()) {
    const TestTensor tensor = {StateKey::Model("the.tensor"), dtype, {13, 3}};
    StateDict state = FullState({tensor});
    state.aliases.clear();
    state.units.clear();
    const absl::Status written = Write(state, ReadFromMemory(state), {.overwrite = true});
    if (GetParam().refused.count(dtype) != 0) {
      EXPECT_THAT(written, StatusIs(StatusCode::kInvalidArgument, HasSubstr("the.tensor"))) << DTypeName(dtype);
      EXPECT_THAT(written, StatusIs(StatusCode::kInvalidArgument, HasSubstr(std::string(DTypeName(dtype)))));
      EXPECT_THAT(ListNames(root_), IsEmpty()) << DTypeName(dtype);
      continue;
    }
    ASSERT_OK(written) << DTypeName(dtype);
    ASSERT_OK_AND_ASSIGN(const auto source, Open());
    EXPECT_EQ(source->contents().FindTensor(tensor.key)->dtype, dtype) << DTypeName(dtype);
    EXPECT_OK(ReadAll({tensor})) << DTypeName(dtype);
    fs::remove_all(destination());
  }
}

TEST_P(WritingTest, MakesADirectoryOrAFileAsItSays) {
  MustWrite(SmallTensors());
  EXPECT_EQ(fs::is_directory(destination()), MakeWriter(GetParam().target)->MakesDirectory(destination()));
  EXPECT_THAT(ListNames(root_), ElementsAre(GetParam().destination));
}

TEST_P(WritingTest, NamesItsFilesAsItsDriverSaysAndAsNoOtherDoes) {
  MustWrite(SmallTensors());
  if (!fs::is_directory(destination())) GTEST_SKIP() << "it is one file, whose name is the caller's";
  for (const std::string& name : ListNames(destination())) {
    for (const Format& format : Formats()) {
      EXPECT_EQ(format.driver->OwnsFileName(name), format.driver == &GetParam().driver())
          << name << " " << format.driver->name();
    }
  }
}

TEST_P(WritingTest, AModelWithoutTensorsIsWrittenAndRead) {
  ASSERT_OK(Write(StateDict(), ReadNothing));
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const auto& [key, value] : source->contents().entries()) {
    EXPECT_FALSE(std::holds_alternative<ShardedTensor>(value)) << key.ToString();
  }
}

TEST_P(WritingTest, WhatHasTheNameIsReplacedWholeAndOnlyWhenAskedFor) {
  MustWrite(LargeTensors());
  const std::map<std::string, std::string> old = BytesOf(destination());
  const StateDict state = Bytes("w", 40);
  EXPECT_THAT(Write(state, ReadPattern), StatusIs(StatusCode::kAlreadyExists, HasSubstr(destination())));
  EXPECT_TRUE(BytesOf(destination()) == old);
  ASSERT_OK(Write(state, ReadPattern, {.overwrite = true}));
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_NE(source->contents().FindTensor(StateKey::Model("w")), nullptr);
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("large")), nullptr);
  EXPECT_THAT(ListNames(root_), ElementsAre(GetParam().destination));
}

TEST_P(WritingTest, AFailingReadLeavesWhatWasThereAndNothingElse) {
  const StateDict state = Bytes("w", int64_t{9} << 20);
  for (const bool is_replaced : {false, true}) {
    if (is_replaced) MustWrite(SmallTensors());
    const std::map<std::string, std::string> old = BytesOf(destination());
    std::atomic<int> reads = 0;
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      return ++reads == 2 ? absl::DataLossError("a bad block") : ReadPattern(key, interval, out);
    };
    EXPECT_THAT(Write(state, read, {.overwrite = is_replaced}),
                StatusIs(StatusCode::kDataLoss, HasSubstr("a bad block")));
    EXPECT_TRUE(BytesOf(destination()) == old);
    EXPECT_THAT(ListNames(root_), SizeIs(is_replaced ? 1 : 0));
  }
}

TEST_P(WritingTest, AMissingParentIsNotFound) {
  fs::remove_all(root_);
  EXPECT_THAT(Write(Bytes("w", 3), ReadPattern), StatusIs(StatusCode::kNotFound, HasSubstr(root_)));
}

TEST_P(WritingTest, ProgressGrowsAndEndsAtTheTotal) {
  int64_t last = 0;
  int64_t total = 0;
  FormatWriteOptions options;
  options.buffer_bytes = kBlockBytes;  // the least that every format takes
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  ASSERT_OK(Write(Bytes("w", 9'000'000), ReadPattern, options));
  EXPECT_EQ(last, total);
  EXPECT_GE(total, 9'000'000);
}

TEST_P(WritingTest, EachElementIsPulledOnceOnFewThreadsAsOnMany) {
  for (const int io_threads : {1, 5}) {
    std::atomic<int64_t> pulled = 0;
    const PayloadReader read = [&](const StateKey& key, const Interval& interval, void* out) {
      pulled += interval.size();
      return ReadPattern(key, interval, out);
    };
    ASSERT_OK(Write(Bytes("w", 9'000'001), read, {.overwrite = true, .io_threads = io_threads}));
    EXPECT_EQ(pulled, 9'000'001) << io_threads;
    ASSERT_OK_AND_ASSIGN(const auto source, Open());
    std::string elements(9'000'001, '\0');
    std::string expected = elements;
    ASSERT_OK(source->Read(StateKey::Model("w"), {0, 9'000'001}, elements.data()));
    ASSERT_OK(ReadPattern(StateKey::Model("w"), {0, 9'000'001}, expected.data()));
    EXPECT_TRUE(elements == expected) << io_threads;
  }
}

// Native saves are excluded: each has its own id in its manifest and records.
TEST_P(WritingTest, EqualInputGivesEqualBytesOnAnyNumberOfThreads) {
  std::map<std::string, std::string> bytes[2];
  for (const int run : {0, 1}) {
    MustWrite(
        LargeTensors(),
        {.overwrite = true, .buffer_bytes = run == 0 ? kBlockBytes : 4 * kBlockBytes, .io_threads = run == 0 ? 1 : 3});
    bytes[run] = BytesOf(destination());
    if (GetParam().is_ours()) {
      for (auto file = bytes[run].begin(); file != bytes[run].end();) {
        file = file->first == "/checkpoint.h5" ? std::next(file) : bytes[run].erase(file);
      }
    }
  }
  EXPECT_FALSE(bytes[0].empty());
  EXPECT_TRUE(bytes[0] == bytes[1]);
}

// This process's peak resident memory since ResetPeak, in bytes.
int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

// Returns the current resident memory, or -1 if the kernel does not reset the peak.
int64_t ResetPeak() {
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  return reset.good() ? PeakBytes() : -1;
}

TEST_P(WritingTest, MemoryIsThatOfTheBuffersWhateverTheSizeOfTheTensor) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  constexpr int64_t kTensor = int64_t{96} << 20;
  constexpr int64_t kAllowed = int64_t{48} << 20;
  int64_t before = ResetPeak();
  if (before < 0) GTEST_SKIP() << "the kernel does not reset VmHWM";
  ASSERT_OK(Write(Bytes("w", kTensor), ReadPattern, {.buffer_bytes = int64_t{8} << 20}));
  EXPECT_LT(PeakBytes() - before, kAllowed);
  before = ResetPeak();
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  std::string elements(1 << 20, '\0');
  for (int64_t begin = 0; begin < kTensor; begin += int64_t{32} << 20) {
    ASSERT_OK(source->Read(StateKey::Model("w"), {begin, begin + std::ssize(elements)}, elements.data()));
  }
  EXPECT_LT(PeakBytes() - before, kAllowed);
}

}  // namespace
}  // namespace fsdp
