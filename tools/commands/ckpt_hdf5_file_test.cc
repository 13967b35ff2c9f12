// SPDX-License-Identifier: Apache-2.0
//
// ckpt convert SRC x.h5: one file that other programs open by itself, and that every subcommand takes.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

class CkptHdf5FileTest : public CkptTest {
 protected:
  // Path("saved"): a checkpoint of step 42 with a tied name, a text, optimizer state and attributes.
  void Save() {
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {6, 2};
    for (const char* name : {"wte.weight", "h.10.weight", "h.2.weight"}) state.Set(StateKey::Model(name), tensor);
    state.Set(StateKey::OptimState("wte.weight", "exp_avg"), tensor);
    tensor.dtype = DType::kFloat8E4M3FN;
    state.Set(StateKey::Model("a/b.weight"), tensor);
    state.Set(StateKey::Extra("note"), std::string("a text"));
    state.aliases = {{"lm_head.weight", "wte.weight"}};
    state.attributes = {
        {"model.n_head", int64_t{4}}, {"options.lr", 1e-3}, {"model.act", std::string("gelu")}, {"model.tie", true}};
    const PayloadReader ramp = [](const StateKey&, const Interval& interval, void* out) {
      std::memset(out, 1, interval.size());
      return absl::OkStatus();
    };
    ASSERT_OK(WriteCheckpointDirectory(Path("saved"), state, ramp, {.step = 42}));
  }
};

TEST_F(CkptHdf5FileTest, HasAllThatTheCheckpointHas) {
  Save();
  MustCkpt({"convert", Path("saved"), Path("model.h5")});
  EXPECT_TRUE(std::filesystem::is_regular_file(Path("model.h5")));
  MustCkpt({"verify", Path("model.h5")});
  MustCkpt({"diff", Path("saved"), Path("model.h5")});
  const Json json = Json::parse(MustCkpt({"inspect", Path("model.h5"), "--json"}));
  EXPECT_EQ(json["step"], 42);
  EXPECT_EQ(json["aliases"], Json({{"lm_head.weight", "wte.weight"}}));
  MustCkpt({"convert", Path("model.h5"), Path("again")});
  EXPECT_EQ(Ckpt({"inspect", "--diff_options", Path("saved"), Path("again")}).status, 0);
  MustCkpt({"diff", Path("saved"), Path("again")});
}

TEST_F(CkptHdf5FileTest, OpensInH5pyByItself) {
  Save();
  MustCkpt({"convert", Path("saved"), Path("model.h5")});
  std::filesystem::remove_all(Path("saved"));
  std::ofstream(Path("look.py")) << "import sys, h5py\n"
                                    "f = h5py.File(sys.argv[1])\n"
                                    "a = f.attrs\n"
                                    "print(a['step'], a['format'], a['producer'].split()[0])\n"
                                    "print(a['model.n_head'], a['options.lr'], a['model.act'], a['model.tie'])\n"
                                    "w, tied = f['model/wte.weight'], f['model/lm_head.weight']\n"
                                    "print(w == tied, w.shape, w.attrs['dtype'], w.attrs['fqn'])\n"
                                    "print(f['model/a%2Fb.weight'].attrs['dtype'], f['extra/note'][()].decode())\n"
                                    "print(*f['model'])\n";
  const absl::StatusOr<ProgramResult> run =
      RunProgram({"/usr/bin/python3", Path("look.py"), Path("model.h5")}, absl::Minutes(1));
  if (!run.ok() || run->output.find("No module named") != std::string::npos) GTEST_SKIP() << "there is no h5py here";
  EXPECT_EQ(run->output,
            "42 fsdp checkpoint fsdp\n4 0.001 gelu True\nTrue (6, 2) float32 wte.weight\nfloat8_e4m3fn a text\n"
            "a%2Fb.weight h.2.weight h.10.weight wte.weight lm_head.weight\n");
}

// Also without the manifest: a run's checkpoint.h5 is what a scientist is given.
TEST_F(CkptHdf5FileTest, TheFileOfADirectoryHasTheFactsAndTheTiedNamesToo) {
  Save();
  MustCkpt({"convert", Path("saved"), Path("sharded"), "--state_dict_type=sharded", "--world_size=2"});
  std::ofstream(Path("look.py")) << "import sys, h5py\n"
                                    "f = h5py.File(sys.argv[1])\n"
                                    "print(f.attrs['step'], f.attrs['format'], f.attrs['model.n_head'])\n"
                                    "w, tied = f['model/wte.weight'], f['model/lm_head.weight']\n"
                                    "print(w == tied, w[5, 1] == tied[5, 1], 'warning' in f.attrs)\n"
                                    "print(f['model/a%2Fb.weight'].attrs['dtype'], w.attrs['dtype'], w.attrs['fqn'])\n"
                                    "print(*f['model'])\n";
  for (const auto& [name, warns] : {std::pair("saved", "False"), std::pair("sharded", "True")}) {
    MustCkpt({"verify", Path(name)});
    const absl::StatusOr<ProgramResult> run =
        RunProgram({"/usr/bin/python3", Path("look.py"), Path(absl::StrCat(name, "/checkpoint.h5"))}, absl::Minutes(1));
    if (!run.ok() || run->output.find("No module named") != std::string::npos) GTEST_SKIP() << "there is no h5py here";
    EXPECT_EQ(run->output, absl::StrCat("42 fsdp checkpoint 4\nTrue True ", warns,
                                        "\nfloat8_e4m3fn float32 wte.weight\n"
                                        "a%2Fb.weight h.2.weight h.10.weight wte.weight lm_head.weight\n"))
        << name;
  }
  std::filesystem::remove(Path("saved/manifest.json"));
  MustCkpt({"diff", Path("saved/checkpoint.h5"), Path("sharded")});
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", Path("saved/checkpoint.h5"), "--json"}))["step"], 42);
}

TEST_F(CkptHdf5FileTest, AViewHasTypesNamesTiesAndTheOrderOfPeopleToo) {
  Save();
  MustCkpt({"convert", Path("saved"), Path("model.pt"), "--dtype=bfloat16", "--include=h[.]|wte|lm_head"});
  MustCkpt({"view", Path("model.pt"), Path("look.h5")});
  std::ofstream(Path("look.py")) << "import sys, h5py\n"
                                    "f = h5py.File(sys.argv[1])\n"
                                    "w, tied = f['model/wte.weight'], f['model/lm_head.weight']\n"
                                    "print(w == tied, w.attrs['dtype'], w.attrs['fqn'])\n"
                                    "print(*f['model'])\n";
  const absl::StatusOr<ProgramResult> run =
      RunProgram({"/usr/bin/python3", Path("look.py"), Path("look.h5")}, absl::Minutes(1));
  if (!run.ok() || run->output.find("No module named") != std::string::npos) GTEST_SKIP() << "there is no h5py here";
  EXPECT_EQ(run->output, "True bfloat16 wte.weight\nh.2.weight h.10.weight wte.weight lm_head.weight\n");
}

// The attributes would be most of the time that a save of so many tensors takes.
TEST_F(CkptHdf5FileTest, ADirectoryOfVeryManyTensorsHasTheOrderButNotTheAttributes) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {1};
  for (int i = 0; i <= 10'000; ++i) state.Set(StateKey::Model(absl::StrCat("t.", i)), tensor);
  const PayloadReader zeros = [](const StateKey&, const Interval& interval, void* out) {
    std::memset(out, 0, interval.size() * sizeof(float));
    return absl::OkStatus();
  };
  ASSERT_OK(WriteCheckpointDirectory(Path("many"), state, zeros, {.step = 1}));
  std::ofstream(Path("look.py")) << "import sys, h5py\n"
                                    "f = h5py.File(sys.argv[1])\n"
                                    "names = list(f['model'])\n"
                                    "print(names[9], names[10000], *f['model/t.3'].attrs)\n";
  const absl::StatusOr<ProgramResult> run =
      RunProgram({"/usr/bin/python3", Path("look.py"), Path("many/checkpoint.h5")}, absl::Minutes(1));
  if (!run.ok() || run->output.find("No module named") != std::string::npos) GTEST_SKIP() << "there is no h5py here";
  EXPECT_EQ(run->output, "t.9 t.10000\n");
}

TEST_F(CkptHdf5FileTest, ReplacesAFileOnlyIfAskedTo) {
  Save();
  MustCkpt({"convert", Path("saved"), Path("model.h5")});
  EXPECT_THAT(Ckpt({"convert", Path("saved"), Path("model.h5")}).err, AllOf(HasSubstr("exists"), HasSubstr("--force")));
  MustCkpt({"convert", Path("saved"), Path("model.h5"), "--force", "--model_only"});
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", Path("model.h5"), "--json"}))["optim"]["tensors"], 0);
}

}  // namespace
}  // namespace fsdp
