// SPDX-License-Identifier: Apache-2.0
//
// TensorSource::Identity, by which the ranks of a job learn that they read different checkpoints, on files of every
// format: equal for copies in other places, and different for whatever reads differently, whichever file makes the
// difference.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/conformance/formats_under_test.h"
#include "fsdp/checkpoint/conformance/golden_formats.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Read {
  std::string values;  // all that a rank may load or decide by: names, dtypes, shapes, elements, texts, step, ...
  std::string identity;
};

// The error of a checkpoint that cannot be read.
absl::StatusOr<Read> ReadCheckpoint(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  // Checksums would only refuse more of the changes. The identity of a checkpoint of ours counts on its digests.
  const TensorSourceOptions options = {.verify = driver->traits().is_ours, .skip_links = true};
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, driver->Open(path, options));
  Read read;
  absl::StrAppend(&read.values, source->step(), " ", source->world_size(), "\n");
  for (const auto& [name, text] : source->metadata()) absl::StrAppend(&read.values, name, "=", text, "\n");
  for (const auto& [alias, name] : source->contents().aliases) absl::StrAppend(&read.values, alias, "->", name, "\n");
  for (const auto& [key, value] : source->contents().entries()) {
    absl::StrAppend(&read.values, key.ToString(), " ");
    if (const auto* const tensor = std::get_if<ShardedTensor>(&value)) {
      FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(*source, key));
      absl::StrAppend(&read.values, std::string(DTypeName(tensor->dtype)), tensor->shape.ToString(), " ",
                      DigestOf(bytes).ToHex(), "\n");
    } else {
      absl::StrAppend(&read.values, std::get<std::string>(value), "\n");
    }
  }
  FSDP_ASSIGN_OR_RETURN(read.identity, source->Identity());
  return read;
}

// Changes the files of one checkpoint, one at a time, and counts the changes that are refused or read as something
// else.
class Changes {
 public:
  Changes(std::string path, Read original) : path_(std::move(path)), original_(std::move(original)) {}

  void FlipBytes(const std::string& file, int count) {
    const std::string bytes = ReadFile(file);
    if (bytes.empty()) return;
    for (int i = 0; i < count; ++i) {
      std::string changed = bytes;
      const size_t at = i % 2 == 0 ? random_() % bytes.size() : random_() % std::min<size_t>(bytes.size(), 1024);
      changed[at] ^= static_cast<char>(1 << random_() % 8);
      WriteAll(file, changed);
      Check(absl::StrCat(file, ", byte ", at));
    }
    WriteAll(file, bytes);
  }

  void Swap(const std::string& file, const std::string& other) {
    const std::string bytes = ReadFile(file), others = ReadFile(other);
    WriteAll(file, others);
    WriteAll(other, bytes);
    Check(absl::StrCat(file, " and ", other, " are swapped"));
    WriteAll(file, bytes);
    WriteAll(other, others);
  }

  void Remove(const std::string& file) {
    const std::string bytes = ReadFile(file);
    fs::remove(file);
    Check(absl::StrCat(file, " is removed"));
    WriteAll(file, bytes);
  }

  int count() const { return count_; }

 private:
  void Check(const std::string& what) {
    const absl::StatusOr<Read> read = ReadCheckpoint(path_);
    if (read.ok() && read->values == original_.values) return;
    ++count_;
    if (!read.ok()) return;
    EXPECT_NE(read->identity, original_.identity) << what << ": it reads differently";
  }

  const std::string path_;
  const Read original_;
  std::mt19937 random_{13};
  int count_ = 0;
};

void ExpectIdentityCovers(const std::string& path) {
  ASSERT_OK_AND_ASSIGN(const Read original, ReadCheckpoint(path));
  const std::vector<std::string> files = FilesOf(path);
  Changes changes(path, original);
  const int flips = std::max(6, 120 / static_cast<int>(files.size()));
  for (size_t i = 0; i < files.size(); ++i) {
    changes.FlipBytes(files[i], flips);
    if (files.size() == 1) continue;
    changes.Swap(files[i], files[(i + 1) % files.size()]);
    changes.Remove(files[i]);
  }
  EXPECT_GT(changes.count(), 0) << "nothing was changed";
  ASSERT_OK_AND_ASSIGN(const Read again, ReadCheckpoint(path));
  EXPECT_EQ(again.identity, original.identity);
}

class GoldenIdentityTest : public testing::TestWithParam<std::string> {
 protected:
  // A copy in a directory of its own.
  std::string Copy() const {
    const std::string copy = absl::StrCat(NewTestDirectory(), "/", fs::path(path_).filename().string());
    fs::copy(path_, copy, fs::copy_options::recursive);
    return copy;
  }

  const std::string path_ =
      fs::path(GetParam()).parent_path() / json::parse(ReadFile(GetParam()))["path"].get<std::string>();
};

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenIdentityTest, testing::ValuesIn(GoldenFormats()), NameOfGolden);

TEST_P(GoldenIdentityTest, ACopyInAnotherPlaceHasTheSame) {
  // Both are copies: some formats refuse members that are links, as in this test's inputs.
  ASSERT_OK_AND_ASSIGN(const Read original, ReadCheckpoint(Copy()));
  ASSERT_OK_AND_ASSIGN(const Read copy, ReadCheckpoint(Copy()));
  EXPECT_EQ(copy.identity, original.identity);
  EXPECT_THAT(original.identity, testing::ContainsRegex("digest|save"));
}

TEST_P(GoldenIdentityTest, WhatReadsDifferentlyHasAnother) { ExpectIdentityCovers(Copy()); }

class WrittenIdentityTest : public FormatTest {};

INSTANTIATE_TEST_SUITE_P(Formats, WrittenIdentityTest, testing::ValuesIn(WrittenFormatsUnderTest()), NameOfFormat);

TEST_P(WrittenIdentityTest, WhatReadsDifferentlyHasAnother) {
  MustWrite(SmallTensors());
  ExpectIdentityCovers(destination());
}

}  // namespace
}  // namespace fsdp
