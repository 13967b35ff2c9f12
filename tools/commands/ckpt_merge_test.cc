// SPDX-License-Identifier: Apache-2.0
//
// ckpt merge: base and adapter as PEFT saved them, in and out of every format. merged_source_test has the arithmetic.
#include <filesystem>
#include <string>
#include <vector>

#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CkptMergeTest : public CkptTest {
 protected:
  static std::string Peft(const std::string& name) { return "checkpoint/foreign/peft/testdata/" + name; }

  // bfloat16, so that the result is PEFT's bit for bit.
  const std::string base_ = Peft("llama_lora_bf16_patterns/base");
  const std::string adapter_ = Peft("llama_lora_bf16_patterns/adapter");
  const std::string merged_ = Peft("llama_lora_bf16_patterns/merged");
};

TEST_F(CkptMergeTest, ADirectoryOfHuggingFaceIsTheDefault) {
  std::filesystem::create_directory(Path("base"));  // test data are links, and links to elsewhere are not copied
  for (const char* const name : {"/config.json", "/model.safetensors"}) {
    WriteFile(Path("base") + name, ReadFile(base_ + name));
  }
  EXPECT_THAT(
      MustCkpt({"merge", Path("base"), adapter_, Path("out")}),
      AllOf(HasSubstr(": 21 tensors, "), HasSubstr("note: LoRA changes 8 weights, with scales from 2 to 11.3137"),
            HasSubstr("note: replaced by the adapter's: lm_head.weight")));
  EXPECT_THAT(NamesIn(Path("out")), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(ReadFile(Path("out/config.json")), ReadFile(base_ + "/config.json"));
  MustCkpt({"diff", Path("out"), merged_});
}

TEST_F(CkptMergeTest, AnyFormatIsBaseOrResult) {
  for (const std::string form : {"a.pt", "b.safetensors", "c.h5", "d.npz"}) {
    SCOPED_TRACE(form);
    if (form != "d.npz") {  // has no bfloat16
      MustCkpt({"merge", base_, adapter_, Path(form)});
      MustCkpt({"diff", Path(form), merged_});
    } else {
      MustCkpt({"merge", base_, adapter_, Path(form), "--dtype=float32"});
    }
  }
  MustCkpt({"merge", base_, adapter_, Path("to_dcp"), "--to=dcp"});
  MustCkpt({"diff", Path("to_dcp"), merged_});
  MustCkpt({"merge", base_, adapter_, Path("to_hdf5"), "--to=hdf5"});
  MustCkpt({"diff", Path("to_hdf5"), merged_});
  MustCkpt({"convert", base_, Path("ours"), "--state_dict_type=sharded", "--world_size=3"});
  MustCkpt({"convert", base_, Path("dcp"), "--to=dcp"});
  MustCkpt({"convert", base_, Path("base.pt")});
  for (const std::string base : {"ours", "dcp", "base.pt"}) {
    SCOPED_TRACE(base);
    MustCkpt({"merge", Path(base), adapter_ + "/adapter_model.safetensors", Path("of_" + base + ".pt")});
    MustCkpt({"diff", Path("of_" + base + ".pt"), merged_});
  }
}

TEST_F(CkptMergeTest, AnAdapterOfTorchIsReadToo) {
  std::filesystem::create_directory(Path("adapter"));
  WriteFile(Path("adapter/adapter_config.json"), ReadFile(adapter_ + "/adapter_config.json"));
  MustCkpt({"convert", adapter_ + "/adapter_model.safetensors", Path("weights.pt")});
  std::filesystem::rename(Path("weights.pt"), Path("adapter/adapter_model.bin"));
  MustCkpt({"merge", base_, Path("adapter"), Path("out")});
  MustCkpt({"diff", Path("out"), merged_});
  EXPECT_THAT(MustCkpt({"inspect", Path("adapter")}), HasSubstr("rsLoRA, rank 2 and alpha 4"));
}

TEST_F(CkptMergeTest, JsonHasTheAdapter) {
  const auto json = nlohmann::json::parse(MustCkpt({"merge", base_, adapter_, Path("out.pt"), "--json"}));
  EXPECT_EQ(json["source"], base_);
  EXPECT_EQ(json["adapter"], adapter_);
  EXPECT_EQ(json["destination"], Path("out.pt"));
  EXPECT_EQ(json["tensors"], 21);
  EXPECT_EQ(json["notes"].size(), 2u);
}

TEST_F(CkptMergeTest, WhatCannotBeMergedIsRefusedAndLeavesNothing) {
  const auto refuses = [&](const std::vector<std::string>& arguments, int status, const std::string& text) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, status) << text;
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(Path("out")));
  };
  const std::string dora = Peft("llama_dora/adapter");
  refuses({"merge", base_, dora, Path("out")}, 1, "\"use_dora\" is true (DoRA)");
  refuses({"merge", base_, base_, Path("out")}, 1, "is not an adapter of PEFT");
  refuses({"merge", base_, Path("nothing"), Path("out")}, 1, "nothing");
  refuses({"merge", base_, Peft("gpt2_conv1d_fan_in_fan_out/adapter"), Path("out")}, 1,
          R"(the base has no tensor "transformer.h.0.attn.c_attn.weight")");
  refuses({"merge", base_, adapter_}, 2, "OUT is missing");
  refuses({"merge", base_, adapter_, Path("out"), "--model_only"}, 2, "model_only");
}

TEST_F(CkptMergeTest, TheAdapterIsNeverReplaced) {
  std::filesystem::copy(adapter_, Path("adapter"), std::filesystem::copy_options::recursive);
  const Outcome outcome = Ckpt({"merge", base_, Path("adapter"), Path("adapter"), "--force"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(NamesIn(Path("adapter")), ElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

}  // namespace
}  // namespace fsdp
