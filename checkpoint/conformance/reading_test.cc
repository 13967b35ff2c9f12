// SPDX-License-Identifier: Apache-2.0
//
// Requirements on every reader of a checkpoint format, tested on each of FormatsUnderTest.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/conformance/formats_under_test.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ReadingTest : public FormatTest {};

const TestTensor kBytes = {StateKey::Model("bytes"), DType::kInt8, {9}};

INSTANTIATE_TEST_SUITE_P(Formats, ReadingTest, testing::ValuesIn(FormatsUnderTest()), NameOfFormat);

TEST(FormatsUnderTestTest, EveryLineOfTheTableIsUnderTest) {
  std::set<const FormatDriver*> tested;
  for (const FormatUnderTest& format : FormatsUnderTest()) tested.insert(&format.driver());
  for (const Format& format : Formats()) {
    if (format.driver->traits().is_root) continue;  // a directory of checkpoints, which formats_test tests
    if (!format.target) continue;                   // only read: golden_formats_test
    EXPECT_EQ(tested.count(format.driver), 1u) << format.driver->name();
  }
}

TEST_P(ReadingTest, ItsDriverAndNoOtherRecognisesIt) {
  MustWrite(SmallTensors());
  ASSERT_OK_AND_ASSIGN(const PathProbe probe, ProbePath(path()));
  std::vector<const FormatDriver*> drivers;
  for (const Format& format : Formats()) {
    ASSERT_OK_AND_ASSIGN(const bool is_known, format.driver->Recognises(probe));
    if (is_known) drivers.push_back(format.driver);
  }
  EXPECT_THAT(drivers, ElementsAre(&GetParam().driver()));
}

TEST_P(ReadingTest, ASourceHasTheTraitsOfItsDriver) {
  MustWrite(SmallTensors());
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  const FormatTraits& expected = GetParam().driver().traits();
  EXPECT_EQ(source->format(), expected.name);
  EXPECT_EQ(source->is_ours(), expected.is_ours);
  EXPECT_EQ(source->traits().is_hdf5, expected.is_hdf5);
  EXPECT_EQ(source->traits().keeps_metadata, expected.keeps_metadata);
  EXPECT_EQ(source->traits().model_only, expected.model_only);
}

TEST_P(ReadingTest, ACopyHasTheSameIdentityAndOtherValuesOfTheSameSizeHaveAnother) {
  StateDict state = FullState({kBytes});
  state.aliases.clear();
  state.units.clear();
  ASSERT_OK(Write(state, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const std::string& file : source->files()) EXPECT_TRUE(std::filesystem::is_regular_file(file)) << file;
  EXPECT_FALSE(source->files().empty());
  ASSERT_OK_AND_ASSIGN(const std::string identity, source->Identity());

  const std::string other = NewTestDirectory();
  std::filesystem::copy(root_, other, std::filesystem::copy_options::recursive);
  ASSERT_OK_AND_ASSIGN(const auto copy, OpenTensorSource(other + path().substr(root_.size())));
  EXPECT_THAT(copy->Identity(), IsOkAndHolds(identity));

  static_cast<char*>(state.FindTensor(kBytes.key)->shards[0].data.data())[3] ^= 1;
  ASSERT_OK(Write(state, ReadFromMemory(state), {.overwrite = true}));
  ASSERT_OK_AND_ASSIGN(const auto changed, Open());
  ASSERT_OK_AND_ASSIGN(const std::string new_identity, changed->Identity());
  EXPECT_NE(new_identity, identity);
}

TEST_P(ReadingTest, EveryTensorAndTextThatTheFormatHoldsComesBack) {
  const std::vector<TestTensor> tensors = LargeTensors();
  MustWrite(tensors);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const TestTensor& tensor : tensors) {
    const ShardedTensor* const held = source->contents().FindTensor(tensor.key);
    ASSERT_NE(held, nullptr) << tensor.key.ToString();
    EXPECT_EQ(held->dtype, tensor.dtype) << tensor.key.ToString();
    EXPECT_EQ(held->shape, tensor.shape) << tensor.key.ToString();
    EXPECT_TRUE(held->shards.empty()) << tensor.key.ToString();
  }
  EXPECT_OK(ReadAll(tensors));
  if (GetParam().model_only()) return;
  const StateDict state = FullState(tensors);
  const StateKey text = StateKey::Extra("schedule");
  ASSERT_NE(source->contents().FindText(text), nullptr);
  EXPECT_EQ(*source->contents().FindText(text), *state.FindText(text));
  EXPECT_NE(source->contents().FindText(StateKey::ParamGroups()), nullptr);
}

TEST_P(ReadingTest, AnyIntervalIsThatOfTheWholeOnManyThreads) {
  const std::vector<TestTensor> tensors = LargeTensors();
  MustWrite(tensors);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  std::vector<std::pair<const TestTensor*, Interval>> reads;
  for (const TestTensor& tensor : tensors) {
    const int64_t numel = tensor.shape.numel();
    const int64_t step = numel / 7 + 1;
    for (int64_t begin = 0; begin < numel; begin += step) {
      reads.push_back({&tensor, {begin, std::min(numel, begin + step + 2)}});
    }
    reads.push_back({&tensor, {numel, numel}});
  }
  std::shuffle(reads.begin(), reads.end(), std::mt19937(1));
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Create(8, "conformance"));
  EXPECT_OK(pool->ParallelFor(static_cast<int64_t>(reads.size()), [&](int64_t i) {
    const auto& [tensor, interval] = reads[i];
    const Tensor expected = MakeElements(*tensor, interval);
    std::vector<char> bytes(expected.nbytes());
    const absl::Status status = source->Read(tensor->key, interval, bytes.data());
    if (!status.ok()) return status;
    if (std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(tensor->key.ToString(), " ", interval.ToString(), " differs"));
  }));
}

TEST_P(ReadingTest, PiecesCoverAnIntervalAndAreNoLongerThanABlock) {
  const std::vector<TestTensor> tensors = LargeTensors();
  MustWrite(tensors);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const TestTensor& tensor : tensors) {
    const int64_t numel = tensor.shape.numel();
    const Interval interval = {numel / 5, numel - numel / 7};
    int64_t next = interval.begin;
    for (const Interval& piece : source->Pieces(tensor.key, interval)) {
      EXPECT_EQ(piece.begin, next) << tensor.key.ToString();
      EXPECT_GT(piece.size(), 0) << tensor.key.ToString();
      EXPECT_LE(piece.size() * SizeOf(tensor.dtype), kBlockBytes) << tensor.key.ToString();
      next = piece.end;
    }
    EXPECT_EQ(next, interval.end) << tensor.key.ToString();
  }
}

TEST_P(ReadingTest, AnIntervalOutsideOfTheTensorIsRefusedByNameAndTouchesNothing) {
  MustWrite(SmallTensors());
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  std::vector<char> bytes(8192, 'x');
  for (const Interval& interval : {Interval{-1, 2}, Interval{0, 129}, Interval{129, 130}, Interval{3, 2}}) {
    EXPECT_THAT(source->Read(StateKey::Model("wte.weight"), interval, bytes.data()),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("wte.weight"), HasSubstr(interval.ToString()), HasSubstr("128"))))
        << interval.ToString();
  }
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 'x'), std::ssize(bytes));
}

TEST_P(ReadingTest, ANameThatIsNotThereIsNotFound) {
  MustWrite(SmallTensors());
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  char bytes[64];
  for (const StateKey& key : {StateKey::Model("wte"), StateKey::Extra("wte.weight"), StateKey::Model("")}) {
    EXPECT_THAT(source->Read(key, {0, 1}, bytes), StatusIs(StatusCode::kNotFound, HasSubstr(key.ToString())));
  }
}

TEST_P(ReadingTest, NothingAtThePathIsNotFound) {
  EXPECT_THAT(Open(), StatusIs(StatusCode::kNotFound, HasSubstr("does not exist")));
}

TEST_P(ReadingTest, ABoolOfAnotherByteIsDamageThatIsNamed) {
  if (GetParam().is_ours()) GTEST_SKIP() << "its digest says that the byte is the one that was saved";
  if (GetParam().refused.count(DType::kBool) != 0) GTEST_SKIP() << "it holds no bools";
  const TestTensor tensor = {StateKey::Model("mask"), DType::kBool, {9}};
  StateDict state = FullState({tensor});
  state.aliases.clear();
  state.units.clear();
  static_cast<char*>(state.FindTensor(tensor.key)->shards[0].data.data())[3] = 2;
  ASSERT_OK(Write(state, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  char out[9];
  EXPECT_OK(source->Read(tensor.key, {4, 9}, out));
  EXPECT_THAT(source->Read(tensor.key, {1, 9}, out),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("mask"), HasSubstr("element 3 is 2, expected 0 or 1"))));
}

// A small file may be in memory as a whole: then the elements are right.
TEST_P(ReadingTest, AFileThatShrinksWhileItIsOpenIsAnErrorOrReadAsItWas) {
  const std::vector<TestTensor> tensors = SmallTensors();
  MustWrite(tensors);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const auto& [name, bytes] : BytesOf(path())) WriteAll(path() + name, "");
  std::vector<char> bytes(128 * SizeOf(tensors[0].dtype));
  const absl::Status status = source->Read(tensors[0].key, {0, 128}, bytes.data());
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss));
  } else {
    const Tensor expected = MakeElements(tensors[0], {0, 128});
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
  }
}

TEST_P(ReadingTest, AFileWithMoreThanFitsInMemoryThatShrinksWhileItIsOpenIsAnError) {
  const TestTensor large = {StateKey::Model("wte.weight"), DType::kFloat32, {1 << 16, 4}};
  MustWrite({large});
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const auto& [name, bytes] : BytesOf(path())) WriteAll(path() + name, "");
  std::vector<char> bytes(large.shape.numel() * SizeOf(large.dtype));
  EXPECT_THAT(source->Read(large.key, {0, large.shape.numel()}, bytes.data()), StatusIs(StatusCode::kDataLoss));
}

TEST_P(ReadingTest, ATruncatedFileIsAnErrorOrLosesNothing) {
  const std::vector<TestTensor> tensors = SmallTensors();
  MustWrite(tensors);
  std::mt19937 random(1);
  for (const auto& [name, bytes] : BytesOf(path())) {
    std::vector<size_t> sizes = {0, 1, 8, bytes.size() / 2, bytes.size() - 1};
    for (int i = 0; i < 24; ++i) sizes.push_back(random() % bytes.size());
    for (const size_t size : sizes) {
      SCOPED_TRACE(absl::StrCat(name, " of ", bytes.size(), " bytes cut to ", size));
      WriteAll(path() + name, bytes.substr(0, size));
      const absl::Status status = ReadAll(tensors);
      EXPECT_TRUE(status.ok() || IsErrorOfAFile(status)) << status;
    }
    WriteAll(path() + name, bytes);
  }
  EXPECT_OK(ReadAll(tensors));
}

// After a bit flip, reading either fails and names a file, or gives the right elements: formats with checksums find
// every flip in an element. Formats without checksums may give one wrong element, but nothing worse.
TEST_P(ReadingTest, AFlippedBitIsAnErrorOrOneElement) {
  const std::vector<TestTensor> tensors = SmallTensors();
  MustWrite(tensors);
  ASSERT_OK_AND_ASSIGN(const auto whole, Open());
  EXPECT_OK(ReadAll(tensors));
  const bool has_checksums = whole->has_checksums();
  const std::map<std::string, std::string> files = BytesOf(path());
  std::mt19937 random(1);
  for (int i = 0; i < 240; ++i) {
    const auto file = std::next(files.begin(), static_cast<int64_t>(random() % files.size()));
    const size_t at = random() % file->second.size();
    std::string bytes = file->second;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
    WriteAll(path() + file->first, bytes);
    const absl::Status status = ReadAll(tensors);
    const bool is_another_element = status.code() == StatusCode::kInternal && !has_checksums;
    EXPECT_TRUE(status.ok() || is_another_element || IsErrorOfAFile(status)) << file->first << " " << at << status;
    WriteAll(path() + file->first, file->second);
  }
}

TEST_P(ReadingTest, BytesOfChanceAreRefused) {
  const std::vector<TestTensor> tensors = SmallTensors();
  MustWrite(tensors);
  const std::map<std::string, std::string> files = BytesOf(path());
  std::mt19937 random(1);
  for (const size_t kept : {size_t{0}, size_t{4}, size_t{16}, size_t{64}}) {  // a file is recognised by these bytes
    for (auto [name, bytes] : files) {
      for (size_t i = std::min(kept, bytes.size()); i < bytes.size(); ++i) bytes[i] = static_cast<char>(random());
      WriteAll(path() + name, bytes);
    }
    const absl::Status status = ReadAll(tensors);
    EXPECT_TRUE(IsErrorOfAFile(status)) << kept << " bytes kept: " << status;
  }
}

}  // namespace
}  // namespace fsdp
