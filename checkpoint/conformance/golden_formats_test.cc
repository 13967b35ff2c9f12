// SPDX-License-Identifier: Apache-2.0
//
// Requirements on the reader of a format that only other programs write, on files of the real libraries: every value
// is right, and of a damaged checkpoint each value is right or refused, in bounded time.
#include "fsdp/checkpoint/conformance/golden_formats.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/conformance/formats_under_test.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/sha256_testutil.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

const TensorSourceOptions kLeaveOut = {.skip_links = true};
constexpr auto kPatience = std::chrono::seconds(5);  // for one damaged checkpoint, on a busy machine

class GoldenFormatTest : public testing::TestWithParam<std::string> {
 protected:
  // A copy that the test may damage.
  std::string Copy() const {
    const std::string copy = absl::StrCat(NewTestDirectory(), "/", fs::path(path_).filename().string());
    fs::copy(path_, copy, fs::copy_options::recursive);
    return copy;
  }

  // Opens the checkpoint and reads all. `is_right`: no tensor is missing, and all have the expected elements.
  absl::Status ReadAll(const std::string& path, bool* is_right) const {
    *is_right = true;
    FSDP_ASSIGN_OR_RETURN(const auto source, OpenTensorSource(path, kLeaveOut));
    for (const auto& [name, tensor] : expected_["tensors"].items()) *is_right &= HasName(*source, name);
    for (const auto& [key, value] : source->contents().entries()) {
      if (!std::holds_alternative<ShardedTensor>(value)) continue;
      FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(*source, key));
      const auto found = expected_["tensors"].find(key.ToString());
      *is_right &= found != expected_["tensors"].end() && (*found)["sha256"] == Sha256(bytes);
    }
    return VerifyRest(*source);
  }

  static bool HasName(const TensorSource& source, const std::string& name) {
    for (const auto& [key, value] : source.contents().entries()) {
      if (key.ToString() == name) return true;
    }
    return false;
  }

  // Reads a damaged checkpoint: an error of a file, or, if `may_differ`, other elements. False if all was right.
  bool IsNoticed(const std::string& path, const std::string& what, bool may_differ) const {
    const auto start = std::chrono::steady_clock::now();
    bool is_right = true;
    const absl::Status status = ReadAll(path, &is_right);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience) << what;
    EXPECT_TRUE(status.ok() || IsErrorOfAFile(status)) << what << ": " << status;
    EXPECT_TRUE(!status.ok() || is_right || may_differ) << what << ": wrong elements without an error";
    return !status.ok();
  }

  const json expected_ = json::parse(ReadFile(GetParam()));
  const std::string path_ = fs::path(GetParam()).parent_path() / expected_["path"].get<std::string>();
};

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenFormatTest, testing::ValuesIn(GoldenFormats()), NameOfGolden);

TEST(GoldenFormatsTest, EveryReadOnlyFormatHasAGoldenCheckpoint) {
  std::set<std::string> names;
  for (const FormatUnderTest& format : FormatsUnderTest()) names.insert(format.driver().name());
  for (const std::string& file : GoldenFormats()) names.insert(json::parse(ReadFile(file))["format"]);
  for (const Format& format : Formats()) {
    if (format.driver->traits().is_root) continue;  // a directory of checkpoints, which formats_test tests
    EXPECT_EQ(names.count(format.driver->name()), 1u) << format.driver->name();
  }
}

TEST_P(GoldenFormatTest, OneDriverRecognisesItAndDescribesIt) {
  ASSERT_OK_AND_ASSIGN(const PathProbe probe, ProbePath(path_));
  std::vector<std::string> names;
  for (const Format& format : Formats()) {
    ASSERT_OK_AND_ASSIGN(const bool is_known, format.driver->Recognises(probe));
    if (is_known) names.push_back(format.driver->name());
  }
  EXPECT_THAT(names, testing::ElementsAre(expected_["format"].get<std::string>()));
}

TEST_P(GoldenFormatTest, EveryTensorHasTheBytesThatTheLibraryReads) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path_, kLeaveOut));
  EXPECT_EQ(source->step(), expected_["step"].get<int64_t>());
  EXPECT_EQ(source->world_size(), expected_["world_size"].get<int>());
  std::set<std::string> missing;
  for (const auto& [name, tensor] : expected_["tensors"].items()) missing.insert(name);
  for (const auto& [key, value] : source->contents().entries()) {
    if (!std::holds_alternative<ShardedTensor>(value)) continue;
    const auto& tensor = std::get<ShardedTensor>(value);
    ASSERT_EQ(missing.erase(key.ToString()), 1u) << "unexpected: " << key.ToString();
    const json& expected = expected_["tensors"][key.ToString()];
    EXPECT_EQ(std::string(DTypeName(tensor.dtype)), expected["dtype"]) << key.ToString();
    EXPECT_EQ(tensor.shape, *Shape::Create(expected["shape"].get<std::vector<int64_t>>())) << key.ToString();
    ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWhole(*source, key));
    EXPECT_EQ(Sha256(bytes), expected["sha256"]) << key.ToString();
  }
  EXPECT_THAT(missing, testing::IsEmpty());
  const std::vector<std::string> left_out = source->left_out();
  EXPECT_EQ(left_out.size(), expected_["left_out"].size());
  for (const json& part : expected_["left_out"]) {
    EXPECT_THAT(left_out, Contains(HasSubstr(part.get<std::string>())));
  }
  EXPECT_OK(VerifyRest(*source));
}

TEST_P(GoldenFormatTest, AnyIntervalIsThatOfTheWholeOnManyThreads) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path_, kLeaveOut));
  struct Part {
    StateKey key;
    Interval interval;
    std::string expected;
    std::string read;
  };
  std::vector<Part> parts;
  for (const auto& [key, value] : source->contents().entries()) {
    if (!std::holds_alternative<ShardedTensor>(value)) continue;
    const auto& tensor = std::get<ShardedTensor>(value);
    ASSERT_OK_AND_ASSIGN(const std::string whole, ReadWhole(*source, key));
    const int64_t size = SizeOf(tensor.dtype);
    const int64_t numel = tensor.shape.numel();
    for (int64_t begin = 0; begin < numel; begin += 1 + numel / 5) {
      const Interval interval = {begin, std::min(numel, begin + 1 + numel / 3)};
      const auto bytes = static_cast<size_t>(interval.size() * size);
      parts.push_back({key, interval, whole.substr(begin * size, bytes), std::string(bytes, '\0')});
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Create(8, "readers"));
  EXPECT_OK(pool->ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    return source->Read(parts[i].key, parts[i].interval, parts[i].read.data());
  }));
  for (const Part& part : parts) {
    EXPECT_EQ(part.read, part.expected) << part.key.ToString() << part.interval.ToString();
  }
}

TEST_P(GoldenFormatTest, AFileThatIsTruncatedAnywhereIsNoticedOrNotNeeded) {
  const std::string copy = Copy();
  const std::vector<std::string> files = FilesOf(copy);
  const int per_file = std::max(3, 200 / static_cast<int>(files.size()));
  std::mt19937 random(7);
  for (const std::string& file : files) {
    const std::string bytes = ReadFile(file);
    for (int i = 0; i < per_file && !bytes.empty(); ++i) {
      const size_t size = i == 0 ? 0 : i == 1 ? bytes.size() - 1 : random() % bytes.size();
      WriteAll(file, bytes.substr(0, size));
      IsNoticed(copy, absl::StrCat(file, " cut to ", size, " of ", bytes.size()), false);
    }
    WriteAll(file, bytes);
  }
  EXPECT_FALSE(IsNoticed(copy, "repaired", false));
}

TEST_P(GoldenFormatTest, AFlippedByteIsNoCrashAndNoHang) {
  const std::string copy = Copy();
  const std::vector<std::string> files = FilesOf(copy);
  const int per_file = std::max(8, 500 / static_cast<int>(files.size()));
  std::mt19937 random(11);
  for (const std::string& file : files) {
    const std::string bytes = ReadFile(file);
    for (int i = 0; i < per_file && !bytes.empty(); ++i) {
      std::string damaged = bytes;
      // Headers, which are small, are at the start or the end of most files.
      const size_t range = i % 2 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 512);
      const size_t at = i % 4 == 3 ? bytes.size() - 1 - random() % range : random() % range;
      damaged[at] ^= static_cast<char>(1 + random() % 255);
      WriteAll(file, damaged);
      IsNoticed(copy, absl::StrCat(file, " with another byte ", at), true);
    }
    WriteAll(file, bytes);
  }
}

// What a file is of, without which: names of the same role differ in numbers, or in a number of 32 hexadecimal digits.
std::string RoleOf(const std::string& file) {
  static const auto* const number = new std::regex("[0-9a-f]{32}|[0-9]+");
  return std::regex_replace(file, *number, "#");
}

// The rows of "What a format cannot tell" in docs/formats.md: of a file with this path in the checkpoint.
bool NothingTells(const std::string& format, const std::string& file) {
  static const auto* const files = new std::map<std::string, std::regex>{
      {"dcp", std::regex("[.]distcp$")},
      {"deepspeed", std::regex("/zero/[^/]*/[^/]*[.]pt$")},
      {"megatron", std::regex("[.]distcp$|/mp_rank_[^/]*/")},
      {"orbax", std::regex("/d/[^/]*$|/[0-9.]*$")},
      {"torch_checkpointing", std::regex("[.](json|bin|safetensors)$")},
  };
  const auto found = files->find(format);
  return found != files->end() && std::regex_search(file, found->second);
}

TEST_P(GoldenFormatTest, FilesThatAreExchangedOrRenamedAreNoticedUnlessNothingTells) {
  const std::string copy = Copy();
  std::map<std::string, std::vector<std::string>> roles;
  for (const std::string& file : FilesOf(copy)) roles[RoleOf(file)].push_back(file);
  for (const auto& [role, files] : roles) {
    const bool may_differ = NothingTells(expected_["format"], files[0].substr(copy.size()));
    for (size_t i = 1; i < files.size(); ++i) {
      const std::string bytes = ReadFile(files[i - 1]);
      const std::string others = ReadFile(files[i]);
      WriteAll(files[i], bytes);
      IsNoticed(copy, absl::StrCat(files[i], " is a copy of ", files[i - 1]), may_differ);
      WriteAll(files[i - 1], others);
      IsNoticed(copy, absl::StrCat(files[i], " and ", files[i - 1], " are exchanged"), may_differ);
      fs::remove(files[i - 1]);
      IsNoticed(copy, absl::StrCat(files[i - 1], " is renamed to ", files[i]), may_differ);
      WriteAll(files[i], others);
      WriteAll(files[i - 1], bytes);
    }
  }
  EXPECT_FALSE(IsNoticed(copy, "repaired", false));
}

// As in a clone without `git lfs pull`, or with one of a part of the files.
TEST_P(GoldenFormatTest, AFileThatIsAPointerOfGitLfsIsNamedOrNotNeeded) {
  const std::string copy = Copy();
  for (const std::string& file : FilesOf(copy)) {
    const std::string bytes = ReadFile(file);
    WriteAll(file,
             absl::StrCat("version https://git-lfs.github.com/spec/v1\noid sha256:3f\nsize ", bytes.size(), "\n"));
    const std::string message = absl::StrCat(" is a Git LFS pointer to a file of ", bytes.size(), " bytes");
    EXPECT_THAT(OpenTensorSource(file, kLeaveOut),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(file + message)));
    bool is_right = true;
    const absl::Status status = ReadAll(copy, &is_right);
    EXPECT_TRUE(status.ok() ? is_right : testing::Value(status.message(), HasSubstr(message))) << file << status;
    WriteAll(file, bytes);
  }
}

// A reader chooses a file of a directory by its name; the other weights must not vanish without a word.
TEST(GoldenFormatsTest, ADirectoryIsReadByOneFileAndTheOtherWeightsAreNamed) {
  const std::map<std::string, std::string> models = {
      {"any.gguf", "checkpoint/foreign/gguf/testdata/all_types/model.gguf"},
      {"flax_model.msgpack", "checkpoint/foreign/flax/testdata/whole/flax_model.msgpack"},
      {"model.onnx", "checkpoint/foreign/onnx/testdata/raw.onnx"},
      {"model.safetensors", "checkpoint/foreign/safetensors/testdata/all_dtypes_f4_f8.safetensors"},
      {"pytorch_model.bin", "checkpoint/foreign/torch/testdata/float4.pt"}};
  for (const auto& [name, model] : models) {
    const std::string directory = NewTestDirectory();
    fs::copy_file(model, directory + "/" + name);
    {
      ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory, kLeaveOut));
      EXPECT_THAT(source->left_out(), testing::Each(testing::Not(HasSubstr("beside it")))) << name;
    }
    for (const char* other : {"other.npz", "other.hdf5", "other.keras", "optimizer.pt"}) {
      WriteAll(directory + "/" + other, "x");
    }
    if (name != "any.gguf") WriteAll(directory + "/other.gguf", "x");
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory, kLeaveOut));
    const std::vector<std::string> left_out = source->left_out();
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string other = entry.path().filename();
      if (other == name) continue;
      EXPECT_THAT(left_out, Contains(absl::StrCat("\"", other, "\" (a file beside it: give its path to read it)")))
          << name;
    }
    if (name != "any.gguf") continue;
    EXPECT_THAT(source->layout().notes,
                Contains("of the weights in the directory, only the model in GGUF is read, any.gguf"));
  }
}

// Of an iteration in a ROOT, also those in the ROOT, whose other directories are other steps.
TEST_P(GoldenFormatTest, OtherWeightsInItsDirectoryAreNamed) {
  const std::string copy = Copy();
  if (!fs::is_directory(copy)) return;
  ASSERT_OK_AND_ASSIGN(const auto alone, OpenTensorSource(copy, kLeaveOut));
  EXPECT_THAT(alone->left_out(), testing::Each(testing::Not(HasSubstr("beside it"))));
  for (const char* other : {"other.npz", "other.hdf5", "optimizer.pt"}) WriteAll(copy + "/" + other, "x");
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(copy, kLeaveOut));
  for (const char* other : {"other.npz", "other.hdf5", "optimizer.pt"}) {
    EXPECT_THAT(source->left_out(),
                Contains(absl::StrCat("\"", other, "\" (a file beside it: give its path to read it)")));
  }
}

TEST_P(GoldenFormatTest, AMissingFileIsNoticedOrNotNeeded) {
  const std::string copy = Copy();
  if (!fs::is_directory(copy)) return;  // one file
  for (const std::string& file : FilesOf(copy)) {
    const std::string bytes = ReadFile(file);
    fs::remove(file);
    IsNoticed(copy, absl::StrCat(file, " removed"), false);
    WriteAll(file, bytes);
  }
}

}  // namespace
}  // namespace fsdp
