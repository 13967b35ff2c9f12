// SPDX-License-Identifier: Apache-2.0
//
// Files whose model and optimizer are not under the usual names: what ckpt says about them, and --map.
#include <filesystem>
#include <string>
#include <vector>

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
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

using CkptLayoutTest = CkptTest;

TEST_F(CkptLayoutTest, InspectAndConvertSayWhatWasDecided) {
  const std::string app = TorchTestData("app");
  constexpr char kDecision[] = "model from \"app.model\", optimizer from \"app.optim\"";
  EXPECT_THAT(MustCkpt({"inspect", app}), HasSubstr(std::string("layout  ") + kDecision));
  const Json json = Json::parse(MustCkpt({"inspect", app, "--json"}));
  EXPECT_EQ(json["layout"], kDecision);
  EXPECT_EQ(json["model"]["tensors"], 5);
  EXPECT_EQ(json["optim"]["tensors"], 12);
  EXPECT_THAT(MustCkpt({"convert", app, Path("a.safetensors")}), HasSubstr(std::string("note: ") + kDecision));
  ASSERT_OK_AND_ASSIGN(const auto model, OpenTensorSource(Path("a.safetensors")));
  EXPECT_OK(CheckGolden(*model, "app", GoldenParts::kModel));
  EXPECT_THAT(MustCkpt({"convert", TorchTestData("full.pt"), Path("b")}), Not(HasSubstr("model from")));
}

TEST_F(CkptLayoutTest, TheStepIsFoundAndItsNameIsSaid) {
  const std::string top = TorchTestData("top");
  const Json json = Json::parse(MustCkpt({"inspect", top, "--json"}));
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["notes"], Json({"step 3 is \"train_state.step\""}));
  MustCkpt({"convert", top, Path("hdf5")});
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", Path("hdf5"), "--json"}))["step"], 3);
}

TEST_F(CkptLayoutTest, AnUnknownStepStaysUnknownInEveryForm) {
  const std::string model = TestData("hf_sharded");
  MustCkpt({"convert", model, Path("full")});
  MustCkpt({"convert", Path("full"), Path("sharded"), "--state_dict_type=sharded", "--world_size=2", "--parity=1"});
  MustCkpt({"convert", Path("sharded"), Path("local"), "--state_dict_type=local", "--world_size=2"});
  MustCkpt({"convert", Path("local"), Path("a.pt")});
  MustCkpt({"convert", Path("a.pt"), Path("dcp"), "--to=dcp"});
  MustCkpt({"convert", Path("dcp"), Path("again")});
  for (const char* name : {"full", "sharded", "local", "a.pt", "dcp", "again"}) {
    EXPECT_TRUE(Json::parse(MustCkpt({"inspect", Path(name), "--json"}))["step"].is_null()) << name;
    EXPECT_THAT(MustCkpt({"inspect", Path(name)}), Not(HasSubstr("step 0"))) << name;
  }
  EXPECT_THAT(MustCkpt({"inspect", Path("full")}), HasSubstr(": a full checkpoint of an unknown step, world size 1"));
  // Also of a manifest that repair made again from the records.
  std::filesystem::remove(Path("sharded/manifest.json"));
  MustCkpt({"repair", Path("sharded")});
  EXPECT_THAT(MustCkpt({"inspect", Path("sharded")}), HasSubstr("sharded checkpoint of an unknown step"));
}

TEST_F(CkptLayoutTest, TheStateOfATrainerIsTheStepOfTheWeightsBesideIt) {
  const std::string checkpoint = Path("checkpoint-500");
  std::filesystem::copy(TestData("hf_sharded"), checkpoint);
  WriteFile(checkpoint + "/trainer_state.json", R"({"epoch": 1.5, "global_step": 500})");
  const Json json = Json::parse(MustCkpt({"inspect", checkpoint, "--json"}));
  EXPECT_EQ(json["step"], 500);
  EXPECT_EQ(json["notes"], Json({"step 500 is \"global_step\" of trainer_state.json"}));
  MustCkpt({"convert", checkpoint, Path("hdf5")});
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", Path("hdf5"), "--json"}))["step"], 500);
  EXPECT_THAT(MustCkpt({"convert", Path("hdf5"), Path("a.pt")}), HasSubstr("note: step 500 is left out: torch"));
}

TEST_F(CkptLayoutTest, EveryLayoutGoesThroughEveryFormatWithoutLoss) {
  for (const std::string name : {"app", "top", "two_models.pt"}) {
    MustCkpt({"convert", TorchTestData(name), Path(name + ".hdf5")});
    MustCkpt({"convert", Path(name + ".hdf5"), Path(name + ".pt")});
    MustCkpt({"convert", Path(name + ".pt"), Path(name + ".dcp"), "--to=dcp"});
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(Path(name + ".dcp")));
    EXPECT_OK(CheckGolden(*source, name)) << name;
  }
}

TEST_F(CkptLayoutTest, MapTakesTheBranchThatIsMeant) {
  const std::string gan = TorchTestData("two_models.pt");
  MustCkpt({"convert", gan, Path("g.safetensors"), "--map=generator=model", "--model_only"});
  ASSERT_OK_AND_ASSIGN(const auto model, OpenTensorSource(Path("g.safetensors")));
  EXPECT_EQ(model->contents().entries().size(), 5);
  EXPECT_TRUE(model->contents().contains(StateKey::Model("embed.weight")));
  MustCkpt({"diff", gan, Path("g.safetensors"), "--map=generator=model", "--model_only"});
  MustCkpt({"verify", gan, "--map=generator=model.g", "--map=opt_g=optim.g"});
  const Json json =
      Json::parse(MustCkpt({"inspect", gan, "--map=generator=model.g", "--map=opt_g=optim.g", "--json", "--tensors"}));
  EXPECT_EQ(json["tensors"][0]["name"], "model/g.count");
  EXPECT_EQ(json["optim"]["tensors"], 12);
}

TEST_F(CkptLayoutTest, ARoleThatCannotBeIsRefused) {
  const std::string gan = TorchTestData("two_models.pt");
  const Outcome unknown = Ckpt({"verify", gan, "--map=netG=model"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--map has \"netG\""), HasSubstr("\"generator\", \"discriminator\"")));
  const Outcome usage = Ckpt({"convert", gan, Path("x.pt"), "--map=generator"});
  EXPECT_EQ(usage.status, 2);
  EXPECT_THAT(usage.err, HasSubstr("--map: \"generator\", expected FROM=ROLE"));
  MustCkpt({"convert", gan, Path("x.safetensors")});
  const Outcome pointless = Ckpt({"inspect", Path("x.safetensors"), "--map=generator=model"});
  EXPECT_EQ(pointless.status, 1);
  EXPECT_THAT(pointless.err, HasSubstr("--map is for torch files and DCP directories"));
}

}  // namespace
}  // namespace fsdp
