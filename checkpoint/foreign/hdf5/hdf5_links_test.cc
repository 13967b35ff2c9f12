// SPDX-License-Identifier: Apache-2.0
//
// Contents of an HDF5 file other than datasets are named, never followed, and never dropped in silence. The files
// imitate other programs' and attackers' files.
#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/foreign/hdf5/confined_hdf5.h"
#include "fsdp/checkpoint/foreign/hdf5/foreign_hdf5.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_source.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::vector<float> kValues = {1, 2, 3};

std::string NewFile() { return NewTestDirectory() + "/foreign.h5"; }

// model/a, and links to something.
std::string FileWithLinks() {
  const std::string path = NewFile();
  ForeignHdf5 file(path);
  file.AddDataset("/model/a", kValues);
  file.AddSoftLink("/model/b", "/model/a");
  file.AddExternalLink("/model/c", "/etc/passwd", "/x");
  file.AddHardLink("/model/d", "/model");
  return path;
}

std::vector<std::string> PathsOf(const Hdf5Listing& listing) {
  std::vector<std::string> paths;
  for (const Hdf5Dataset& dataset : listing.datasets) paths.push_back(dataset.path);
  return paths;
}

std::vector<std::string> LeftOutOf(const Hdf5Listing& listing) {
  std::vector<std::string> sentences;
  for (const Hdf5LeftOut& left_out : listing.left_out) sentences.push_back(Describe(left_out));
  return sentences;
}

TEST(Hdf5LinksTest, EachKindIsListedWithItsPathAndItsTarget) {
  const std::string path = NewFile();
  const std::string fifo = NewTestDirectory() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);  // opening it for reading would block
  {
    ForeignHdf5 file(path);
    file.AddDataset("/model/a", kValues);
    file.AddSoftLink("/model/b", "/model/a");
    file.AddSoftLink("/model/c", "nothing/here");
    file.AddSoftLink("/model/d", "/model/d");
    file.AddExternalLink("/model/e", "/etc/passwd", "/x");
    file.AddExternalLink("/model/f", fifo, "/");
    file.AddHardLink("/model/g", "/model/a");
    file.AddHardLink("/model/h", "/model");
    file.AddHardLink("/model/i", "/");
    file.AddNamedDatatype("/model/j");
    file.AddSoftLink("/model/\x1B[2Jk", "/\"\n");
  }
  ASSERT_OK_AND_ASSIGN(const Hdf5Listing listing, ListUntrustedHdf5(path));
  EXPECT_THAT(PathsOf(listing), ElementsAre("/model/a"));
  EXPECT_THAT(LeftOutOf(listing),
              ElementsAre(R"("/model/\033[2Jk" (soft link to "/\"\n"))", R"("/model/b" (soft link to "/model/a"))",
                          R"("/model/c" (soft link to "nothing/here"))", R"("/model/d" (soft link to "/model/d"))",
                          R"("/model/e" (external link to "/x" in file "/etc/passwd"))",
                          absl::StrCat(R"("/model/f" (external link to "/" in file ")", fifo, R"("))"),
                          R"("/model/h" (hard link to "/model"))", R"("/model/i" (hard link to "/"))",
                          R"("/model/j" (named datatype))"));
  EXPECT_EQ(listing.left_out_count, 9);
  ASSERT_EQ(listing.aliases.size(), 1u);
  EXPECT_EQ(listing.aliases[0].path, "/model/g");
  EXPECT_EQ(listing.aliases[0].target, "/model/a");
}

TEST(Hdf5LinksTest, OfTwoHardLinksTheFirstByNameIsTheDataset) {
  const std::string path = NewFile();
  {
    ForeignHdf5 file(path);
    file.AddDataset("/model/z", kValues);
    file.AddHardLink("/model/m", "/model/z");
    file.AddHardLink("/extra/q", "/model/z");
  }
  ASSERT_OK_AND_ASSIGN(const Hdf5Listing listing, ListUntrustedHdf5(path));
  EXPECT_THAT(PathsOf(listing), ElementsAre("/extra/q"));
  EXPECT_THAT(LeftOutOf(listing),
              ElementsAre(R"("/model/m" (hard link to "/extra/q"))", R"("/model/z" (hard link to "/extra/q"))"));
}

TEST(Hdf5LinksTest, AFurtherHardLinkWithinTheModelIsATiedTensor) {
  const std::string path = NewFile();
  {
    ForeignHdf5 file(path);
    file.AddDataset("/model/wte.weight", kValues);
    file.AddHardLink("/model/lm_head.weight", "/model/wte.weight");
  }
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_THAT(source->left_out(), IsEmpty());
  EXPECT_EQ(source->contents().entries().size(), 1u);
  // No attribute says which name is the first.
  EXPECT_EQ(source->contents().aliases.at("wte.weight"), "lm_head.weight");
}

TEST(Hdf5LinksTest, ManyLinksAreCountedAndTheFirstOnesNamed) {
  const std::string path = NewFile();
  constexpr int kLinks = 100'000;
  {
    ForeignHdf5 file(path);
    file.AddDataset("/model/a", kValues);
    const std::string target = absl::StrCat("/", std::string(5000, 't'));
    for (int i = 0; i < kLinks; ++i) file.AddSoftLink(absl::StrCat("/model/link", i), i < 10 ? target : "/model/a");
  }
  ASSERT_OK_AND_ASSIGN(const Hdf5Listing listing, ListUntrustedHdf5(path));
  EXPECT_EQ(listing.left_out_count, kLinks);
  ASSERT_EQ(listing.left_out.size(), kMaxHdf5LeftOut);
  EXPECT_EQ(listing.left_out[0].target.size(), kMaxHdf5LeftOutText);
  EXPECT_THAT(OpenHdf5FileSource(path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(", 99900 more; ")));
}

TEST(Hdf5LinksTest, AFileWithLinksIsReadOnlyWhereTheyMayBeSkipped) {
  const std::string path = FileWithLinks();
  EXPECT_THAT(OpenTensorSource(path),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(R"(left out: "/model/b" (soft link to "/model/a"), )"
                                       R"("/model/c" (external link to "/x" in file "/etc/passwd"), )"
                                       R"("/model/d" (hard link to "/model"); )"),
                             HasSubstr("TensorSourceOptions::skip_links"))));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path, {.skip_links = true}));
  EXPECT_EQ(source->contents().entries().size(), 1u);
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("/model/b"), HasSubstr("/model/c"), HasSubstr("/model/d")));
  ASSERT_OK_AND_ASSIGN(const SourceDescription description, DescribeHdf5File(path));
  EXPECT_EQ(description.left_out, source->left_out());
}

TEST(Hdf5LinksTest, AConversionSaysWhatItLeavesOut) {
  const std::string path = FileWithLinks();
  const std::string out = NewTestDirectory() + "/out.safetensors";
  EXPECT_THAT(ConvertCheckpoint(path, out, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(R"("/model/c" (external link)"), HasSubstr("set ConvertOptions::skip_links"),
                             Not(HasSubstr("TensorSourceOptions")))));
  ConvertOptions options;
  options.skip_links = true;
  ASSERT_OK_AND_ASSIGN(const ConvertReport report, ConvertCheckpoint(path, out, options));
  EXPECT_EQ(report.tensors, 1);
  EXPECT_THAT(report.notes, ElementsAre(R"(left out: "/model/b" (soft link to "/model/a"))", HasSubstr("/etc/passwd"),
                                        HasSubstr("\"/model/d\"")));
}

TEST(Hdf5LinksTest, AFileOfLinksAloneIsNeverAnEmptyCheckpoint) {
  const std::string path = NewFile();
  {
    ForeignHdf5 file(path);
    file.AddGroup("/model");
    file.AddExternalLink("/model/c", "other.h5", "/model/c");
  }
  for (const bool skip_links : {false, true}) {
    EXPECT_THAT(OpenTensorSource(path, {.skip_links = skip_links}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(R"("/model/c" (external link to "/model/c" in file "other.h5"))"),
                               HasSubstr("there is nothing else in it"))));
  }
}

TEST(Hdf5LinksTest, ALoadTakesWhatThereIsAndNamesTheLinksWhereSomethingIsMissing) {
  const std::string path = FileWithLinks();
  const TestTensor a = {StateKey::Model("a"), DType::kFloat32, {3}};
  const TestTensor b = {StateKey::Model("b"), DType::kFloat32, {3}};
  StateDict wanted;
  wanted.Set(a.key, ShardedTensor(*FullState({a}).FindTensor(a.key)));
  ASSERT_OK(LoadCheckpoint(path, wanted));
  const auto* values = wanted.FindTensor(a.key)->shards[0].data.data_as<float>();
  EXPECT_EQ(std::vector<float>(values, values + 3), kValues);
  wanted = StateDict();
  wanted.Set(b.key, ShardedTensor(*FullState({b}).FindTensor(b.key)));
  EXPECT_THAT(LoadCheckpoint(path, wanted),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(R"("model/b"; it is read without: "/model/b" (soft link to "/model/a"), )")));
  EXPECT_THAT(DescribeCheckpoint(path),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/model/b"), HasSubstr("set DescribeOptions::skip_links"),
                             Not(HasSubstr("TensorSourceOptions")))));
  ASSERT_OK_AND_ASSIGN(const StateDict described, DescribeCheckpoint(path, {.skip_links = true}));
  EXPECT_EQ(described.entries().size(), 1u);
}

TEST(Hdf5LinksTest, AFileOfOursHasNone) {
  StateDict state = FullState(AwkwardTensors());
  const std::string path = NewTestDirectory() + "/checkpoint";
  ASSERT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), {}));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path + "/checkpoint.h5"));
  EXPECT_THAT(source->left_out(), IsEmpty());
}

}  // namespace
}  // namespace fsdp
