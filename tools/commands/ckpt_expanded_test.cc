// SPDX-License-Identifier: Apache-2.0
//
// Torch files whose tensors are larger than the file's data, through the ckpt program: its reports about them, that it
// misses no NaN silently, and the memory of a command on very many tensors.
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Json = nlohmann::json;
using Floats = std::vector<float>;
using CkptExpandedTest = CkptTest;

// A float tensor: a view of a storage.
struct View {
  std::string name;
  int storage = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

// A .pt, in the form before torch 1.6, of a model of these tensors.
std::string FileOfViews(const std::vector<View>& views, const std::vector<Floats>& storages) {
  const auto bytes = [](int64_t value, int count) { return std::string(reinterpret_cast<const char*>(&value), count); };
  const auto integer = [&](int64_t value) { return "\x8a\x08" + bytes(value, 8); };
  const auto text = [&](const std::string& value) {
    return "X" + bytes(static_cast<int64_t>(value.size()), 4) + value;
  };
  const auto tuple = [&](const std::vector<int64_t>& values) {
    std::string pushed = "(";
    for (const int64_t value : values) pushed += integer(value);
    return pushed + "t";
  };
  std::string tensors;
  for (const View& view : views) {
    const auto numel = static_cast<int64_t>(storages[view.storage].size());
    tensors += text(view.name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" +
               text(absl::StrCat(view.storage)) + text("cpu") + integer(numel) + "NtQ" + integer(view.offset) +
               tuple(view.sizes) + tuple(view.strides) + "\x89}tR";
  }
  const std::string magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  std::string file = "\x80\2\x8a\x0a" + magic + ".\x80\2M\xe9\3.\x80\2}" + text("little_endian") + "\x88s.\x80\2}(" +
                     tensors + "u.\x80\2](";
  for (size_t i = 0; i < storages.size(); ++i) file += text(absl::StrCat(i));
  file += "e.";
  for (const Floats& values : storages) {
    file += bytes(static_cast<int64_t>(values.size()), 8);
    file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  return file;
}

TEST_F(CkptExpandedTest, AnExpandedTensorIsShownWithBothSizesAndConvertedOnlyWhenAsked) {
  WriteFile(Path("expanded.pt"), FileOfViews({{"w", 0, {int64_t{1} << 20, int64_t{1} << 20}, {0, 0}}}, {{0, 1, 2, 3}}));
  EXPECT_THAT(MustCkpt({"inspect", Path("expanded.pt"), "--tensors"}),
              AllOf(HasSubstr("expanded  4.4 TB of tensors are views of 16 B; the worst is model/w, 4.4 TB of 4 B"),
                    HasSubstr("4.4 TB (4 B expanded)")));
  const auto json = nlohmann::json::parse(MustCkpt({"inspect", Path("expanded.pt"), "--tensors", "--json"}));
  EXPECT_EQ(json["bytes"], int64_t{1} << 42);
  EXPECT_EQ(json["stored_bytes"], 16);
  EXPECT_EQ(json["tensors"][0]["bytes"], int64_t{1} << 42);
  EXPECT_EQ(json["tensors"][0]["stored_bytes"], 4);
  // A command that reads every value reads each stored byte once.
  MustCkpt({"verify", Path("expanded.pt")});
  MustCkpt({"inspect", Path("expanded.pt"), "--html=" + Path("page.html")});
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"convert", Path("expanded.pt"), Path("x.safetensors")},
        {"diff", Path("expanded.pt"), Path("expanded.pt")}}) {
    const Outcome refused = Ckpt(command);
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("4398046511104 bytes"), HasSubstr("views of 16 bytes"), HasSubstr("\"model/w\"")));
  }
  EXPECT_THAT(Ckpt({"convert", Path("expanded.pt"), Path("x.safetensors")}).err, HasSubstr("--allow_expanded"));
  // No disk of a test is large enough for it.
  const Outcome full = Ckpt({"convert", Path("expanded.pt"), Path("x.safetensors"), "--allow_expanded"});
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.err, HasSubstr("but the disk has room for"));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("expanded.pt", "page.html"));
}

TEST_F(CkptExpandedTest, WithAllowExpandedEveryElementIsWritten) {
  WriteFile(Path("rows.pt"), FileOfViews({{"w", 0, {3, 4}, {0, 1}}}, {{0, 1, 2, 3}}));
  EXPECT_EQ(Ckpt({"convert", Path("rows.pt"), Path("x.safetensors")}).status, 1);
  MustCkpt({"convert", Path("rows.pt"), Path("x.safetensors"), "--allow_expanded"});
  ASSERT_OK_AND_ASSIGN(const auto written, OpenTensorSource(Path("x.safetensors")));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(Path("rows.pt")));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWhole(*written, StateKey::Model("w")));
  EXPECT_EQ(bytes.size(), 48);
  EXPECT_EQ(bytes, *ReadWhole(*source, StateKey::Model("w")));
  MustCkpt({"diff", Path("rows.pt"), Path("x.safetensors")});  // moderately expanded: compared
}

// Tied weights are one tensor; different views of one storage are many.
TEST_F(CkptExpandedTest, TiedWeightsDoNotExpandAndManyViewsOfOneStorageDo) {
  WriteFile(Path("tied.pt"), FileOfViews({{"a", 0, {4}, {1}}, {"b", 0, {4}, {1}}, {"c", 0, {4}, {1}}}, {{0, 1, 2, 3}}));
  MustCkpt({"convert", Path("tied.pt"), Path("tied.safetensors")});
  WriteFile(Path("parts.pt"), FileOfViews({{"a", 0, {2}, {1}}, {"b", 0, {2}, {1}, 2}}, {{0, 1, 2, 3}}));
  MustCkpt({"convert", Path("parts.pt"), Path("parts.safetensors")});
  WriteFile(Path("views.pt"),
            FileOfViews({{"alone", 1, {4}, {1}}, {"b", 0, {2}, {1}}, {"c", 0, {2}, {1}, 1}, {"d", 0, {2}, {1}, 2}},
                        {{0, 1, 2, 3}, {0, 1, 2, 3}}));
  const Outcome refused = Ckpt({"convert", Path("views.pt"), Path("views.safetensors")});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("40 bytes, but they are views of 32 bytes"),
                                 HasSubstr("different tensors are views of the same storage, such as \"model/b\"")));
  // The same reason in inspect, and nothing about a tensor of "8 B of 8 B" or one that is not concerned.
  EXPECT_THAT(MustCkpt({"inspect", Path("views.pt")}),
              AllOf(HasSubstr("different tensors are views of the same storage, such as model/b\n"),
                    Not(HasSubstr("the worst is"))));
  MustCkpt({"convert", Path("views.pt"), Path("views.safetensors"), "--include=^b$"});
}

// The number of NaN by tensor, from verify --json.
std::map<std::string, int64_t> NaNOf(const Json& verified) {
  std::map<std::string, int64_t> nan;
  for (const Json& tensor : verified["nonfinite"]) nan[tensor["tensor"]] = tensor["nan"];
  return nan;
}

// Regression: for a file with one huge expanded tensor, each storage was read only for as many elements as it has
// bytes, from the first view's first element on. That missed a NaN anywhere else: after the first of expanded columns,
// in a tensor after the expanded one, after the first windows.
TEST_F(CkptExpandedTest, ANaNIsFoundInEveryStoredElementOfAFileThatExpandsALot) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const std::vector<View> views = {
      {"columns", 0, {4, kMany}, {1, 0}}, {"rows", 1, {kMany, 4}, {0, 1}}, {"after_rows", 1, {2, 2}, {1, 2}},
      {"windows", 2, {5, 4}, {1, 1}},     {"plain", 3, {4}, {1}},          {"slice", 4, {2, 2}, {4, 1}, 1}};
  const Floats clean = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int> numels = {4, 4, 8, 4, 8};
  for (size_t storage = 0; storage < numels.size(); ++storage) {
    for (int at = 0; at < numels[storage]; ++at) {
      std::vector<Floats> storages;
      for (const int numel : numels) storages.emplace_back(clean.begin(), clean.begin() + numel);
      storages[storage][at] = NAN;
      WriteFile(Path("x.pt"), FileOfViews(views, storages));
      const Json verified = Json::parse(MustCkpt({"verify", Path("x.pt"), "--json"}));
      const bool in_slice = at == 1 || at == 2 || at == 5 || at == 6;
      using Names = std::map<std::string, int64_t>;
      const Names expected[] = {{{"model/columns", 1}},
                                {{"model/rows", 1}, {"model/after_rows", 1}},
                                {{"model/windows", 1}},
                                {{"model/plain", 1}},
                                in_slice ? Names{{"model/slice", 1}} : Names{}};
      EXPECT_EQ(NaNOf(verified), expected[storage]) << "storage " << storage << ", element " << at;
      EXPECT_TRUE(verified["not_wholly_read"].empty());
    }
  }
  MustCkpt({"inspect", Path("x.pt"), "--html=" + Path("page.html")});
  EXPECT_THAT(ReadFile(Path("page.html")), AllOf(HasSubstr("Every stored value was read"), Not(HasSubstr("wholly"))));
}

// 40 different views of one storage of 2^21 elements: 8 MiB, of which 4 times 8 MiB and 64 MiB are read.
TEST_F(CkptExpandedTest, WhatIsNotWhollyReadIsNamedWithItsNumbers) {
  constexpr int64_t kNumel = int64_t{1} << 21;
  constexpr int kViews = 40;
  std::vector<View> views;
  for (int i = 0; i < kViews; ++i) views.push_back({absl::StrCat("view", i), 0, {kNumel - kViews}, {1}, i});
  views.push_back({"plain", 1, {4}, {1}});
  Floats values(kNumel, 1.0f);
  values[kNumel - kViews - 1] = NAN;  // in all of the views
  WriteFile(Path("x.pt"), FileOfViews(views, {values, {0, 1, 2, NAN}}));
  const Json verified = Json::parse(MustCkpt({"verify", Path("x.pt"), "--json"}));
  const std::map<std::string, int64_t> nan = NaNOf(verified);
  EXPECT_EQ(nan.count("model/plain"), 1);
  std::set<std::string> unread;
  for (const Json& tensor : verified["not_wholly_read"]) {
    EXPECT_EQ(tensor["read"].get<int64_t>() + tensor["unread"].get<int64_t>(), kNumel - kViews);
    unread.insert(tensor["tensor"]);
  }
  EXPECT_EQ(unread.size(), 28);  // 12 views have 96 MiB
  for (const View& view : views) {
    const std::string name = "model/" + view.name;
    EXPECT_TRUE(nan.count(name) != 0 || unread.count(name) != 0) << name;
  }
  EXPECT_THAT(MustCkpt({"verify", Path("x.pt")}),
              AllOf(HasSubstr("not wholly read: model/view12: 480 elements of 2097112\n"),
                    HasSubstr("not wholly read: 12 more tensors\n"), HasSubstr("but 28 tensors were not wholly read")));
  const std::string shown = MustCkpt({"inspect", Path("x.pt"), "--json", "--html=" + Path("page.html")});
  EXPECT_EQ(Json::parse(shown)["not_wholly_read"].size(), 28);
  EXPECT_THAT(ReadFile(Path("page.html")),
              AllOf(HasSubstr("Not wholly read"), HasSubstr("Not every stored value was read")));
}

// 18 MB of pickle, so 104 MB are allowed. When the index and the leaves of the state dict kept each name too, inspect
// took 121 MB.
TEST_F(CkptExpandedTest, AWholeCommandOn80000TensorsCostsTwiceThePickleAnd64MiB) {
  {
    std::vector<View> views;
    for (int i = 0; i < 80'000; ++i) {
      const std::string name = absl::StrCat("_fsdp_wrapped_module.model.layers.", i / 100, ".mlp.experts.", i % 100);
      views.push_back({name + ".weight", i, {2, 2}, {2, 1}});
    }
    WriteFile(Path("large.pt"), FileOfViews(views, std::vector<Floats>(views.size(), Floats(4))));
    WriteFile(Path("tiny.pt"), FileOfViews({{"w", 0, {2, 2}, {2, 1}}}, {Floats(4)}));
  }
  // The pickles: the file without its storages, each of 16 bytes and a length of 8.
  const auto pickle = static_cast<int64_t>(ReadFile(Path("large.pt")).size()) - 80'000 * 24;
  for (const char* command : {"inspect", "verify"}) {
    const Outcome large = Ckpt({command, Path("large.pt")});
    EXPECT_EQ(large.status, 0) << large.err;
    EXPECT_LE(large.peak_bytes - Ckpt({command, Path("tiny.pt")}).peak_bytes, 2 * pickle + (int64_t{64} << 20))
        << command;
  }
}

}  // namespace
}  // namespace fsdp
