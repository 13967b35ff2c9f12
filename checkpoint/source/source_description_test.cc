// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/source_description.h"

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

// A tensor of two elements for each file, "t0", "t1", ...
class FilesSource final : public TensorSource {
 public:
  explicit FilesSource(std::vector<std::string> files) : files_(std::move(files)) {
    for (size_t i = 0; i < files_.size(); ++i) {
      contents_.Set(StateKey::Model(absl::StrCat("t", i)), ShardedTensor{DType::kUInt8, {2}, {}});
    }
  }

  const FormatTraits& traits() const override {
    static const auto* const traits = new FormatTraits{.name = "files"};
    return *traits;
  }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return files_; }
  absl::Status Read(const StateKey&, const Interval&, void*) const override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    return std::vector<TensorPlace>{{files_[*contents_.IndexOf(key)], 5, {{0}, {2}}}};
  }

 private:
  const std::vector<std::string> files_;
  StateDict contents_;
  const std::map<std::string, std::string> metadata_;
};

std::vector<std::string> NamesOf(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  for (const DescribedFile& file : DescribeSource(std::make_shared<FilesSource>(files)).files) {
    names.push_back(file.name);
  }
  return names;
}

TEST(SourceDescriptionTest, FilesOfOneNameInTwoDirectoriesAreTwoFiles) {
  const std::string directory = NewTestDirectory();
  const std::vector<std::string> files = {directory + "/mp_rank_00/model.pt", directory + "/mp_rank_01/model.pt"};
  for (const std::string& file : files) {
    std::filesystem::create_directory(std::filesystem::path(file).parent_path());
    WriteAll(file, "1234567");
  }
  const auto source = std::make_shared<FilesSource>(files);
  const SourceDescription description = DescribeSource(source);
  EXPECT_THAT(NamesOf(files), ElementsAre("mp_rank_00/model.pt", "mp_rank_01/model.pt"));
  EXPECT_EQ(description.files[1].nbytes, 7);
  std::vector<int> indexes;
  DescribeTensors(*source, description.files,
                  [&](const StoredTensor& tensor, int64_t) { indexes.push_back(tensor.intervals.at(0).file); });
  EXPECT_THAT(indexes, ElementsAre(0, 1));
}

TEST(SourceDescriptionTest, FilesAreNamedBelowTheDirectoryThatHoldsThemAll) {
  EXPECT_THAT(NamesOf({"/a/b/model.pt"}), ElementsAre("model.pt"));
  EXPECT_THAT(NamesOf({"model.pt"}), ElementsAre("model.pt"));
  EXPECT_THAT(NamesOf({"./x/0.pt", "./x/1.pt", "./x/0.pt"}), ElementsAre("0.pt", "1.pt"));
  EXPECT_THAT(NamesOf({"c/optim.pt", "c/shards/0.bin"}), ElementsAre("optim.pt", "shards/0.bin"));
  EXPECT_THAT(NamesOf({"c/shards/0.bin", "c/shard"}), ElementsAre("shards/0.bin", "shard"));
}

}  // namespace
}  // namespace fsdp
