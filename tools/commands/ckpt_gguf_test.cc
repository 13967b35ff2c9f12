// SPDX-License-Identifier: Apache-2.0
//
// ckpt on GGUF files that gguf-py wrote: in, out with a template and without one, and each flag that is refused.
#include <string>
#include <utility>
#include <vector>

#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CkptGgufTest : public CkptTest {
 protected:
  static std::string Gguf(const std::string& name) { return "checkpoint/foreign/gguf/testdata/" + name; }
};

TEST_F(CkptGgufTest, InspectSaysWhatIsQuantized) {
  EXPECT_THAT(MustCkpt({"inspect", Gguf("split"), "--tensors"}),
              AllOf(HasSubstr("a model in GGUF"), HasSubstr("2 tensors are quantized (1 of Q4_0, 1 of Q8_0)"),
                    HasSubstr("metadata  general.architecture = llama"), HasSubstr("model-00003-of-00003.gguf"),
                    HasSubstr("token_embd.weight"),
                    HasSubstr("to convert it  ckpt convert " + Gguf("split") + " model.safetensors\n")));
}

TEST_F(CkptGgufTest, EveryFormatKeepsTensorsAndMetadata) {
  for (const char* form : {"a.safetensors", "a.h5", "a.gguf"}) {
    MustCkpt({"convert", Gguf("split"), Path(form)});
    MustCkpt({"diff", Gguf("split"), Path(form), "--model_only"});
    MustCkpt({"verify", Path(form)});
  }
  EXPECT_THAT(MustCkpt({"inspect", Path("a.safetensors")}), HasSubstr("metadata  x.ints = [1,-2,3]"));
}

TEST_F(CkptGgufTest, AModelThatWentThroughSafetensorsTakesThePlaceOfItsTemplate) {
  MustCkpt({"convert", Gguf("writer/source.gguf"), Path("tuned.safetensors")});
  MustCkpt({"convert", Path("tuned.safetensors"), Path("tuned.gguf"), "--template=" + Gguf("writer/model.gguf")});
  EXPECT_TRUE(ReadFile(Path("tuned.gguf")) == ReadFile(Gguf("writer/model.gguf")));
  MustCkpt({"convert", Path("tuned.safetensors"), Path("f16.gguf"), "--template=" + Gguf("writer/model.gguf"),
            "--outtype=f16"});
  EXPECT_THAT(MustCkpt({"inspect", Path("f16.gguf"), "--tensors"}), HasSubstr("float16"));
}

TEST_F(CkptGgufTest, KeptBlocksAndKeysAreTheSourcesBytes) {
  for (const char* name : {"all_types/model.gguf", "random_blocks/model.gguf", "grids/model.gguf"}) {
    MustCkpt({"convert", Gguf(name), Path("kept.gguf"), "--keep_quantized", "--force"});
    EXPECT_TRUE(ReadFile(Path("kept.gguf")) == ReadFile(Gguf(name))) << name;
  }
  // Without blocks, the keys stay, but for the one that describes them.
  MustCkpt({"convert", Gguf("split"), Path("floats.gguf")});
  EXPECT_THAT(MustCkpt({"inspect", Path("floats.gguf")}),
              AllOf(HasSubstr("x.ints = [1,-2,3]"), testing::Not(HasSubstr("general.file_type"))));
}

TEST_F(CkptGgufTest, KeptBlocksGoThroughOtherFormats) {
  const std::string source = Gguf("split");
  for (const char* form : {"kept.safetensors", "kept.h5", "kept"}) {
    MustCkpt({"convert", source, Path(form), "--keep_quantized", "--rename=^blk=layer", "--rename=^layer=blk"});
    MustCkpt({"convert", Path(form), Path("back.gguf"), "--force"});
    MustCkpt({"diff", source, Path("back.gguf"), "--model_only"});
    EXPECT_THAT(MustCkpt({"inspect", Path("back.gguf")}), HasSubstr("2 tensors are quantized (1 of Q4_0, 1 of Q8_0)"));
  }
  EXPECT_THAT(MustCkpt({"inspect", Path("kept.safetensors")}), HasSubstr("metadata  ggml_types = "));
  MustCkpt({"convert", source, Path("renamed.gguf"), "--keep_quantized", "--rename=^blk=layer"});
  EXPECT_THAT(MustCkpt({"inspect", Path("renamed.gguf"), "--tensors"}),
              AllOf(HasSubstr("2 tensors are quantized"), HasSubstr("layer.0")));
}

TEST_F(CkptGgufTest, BlocksThatCannotBeKeptAreRefused) {
  const std::string kept = "--keep_quantized";
  EXPECT_THAT(Ckpt({"convert", Gguf("split"), Path("x.npz"), kept}).err,
              HasSubstr("--keep_quantized: npz has no place for the types of the blocks"));
  MustCkpt({"convert", Gguf("split"), Path("model.safetensors")});
  EXPECT_THAT(Ckpt({"convert", Path("model.safetensors"), Path("x.gguf"), kept}).err,
              HasSubstr("--keep_quantized is for GGUF: safetensors does not have quantized types"));
  MustCkpt({"convert", Gguf("split"), Path("floats.gguf"), "--outtype=F16"});
  EXPECT_THAT(Ckpt({"convert", Gguf("split"), Path("x.gguf"), kept, "--template=" + Path("floats.gguf")}).err,
              HasSubstr("whose blocks are kept: convert it without keeping them"));
}

TEST_F(CkptGgufTest, TheTemplateIsNeverReplaced) {
  MustCkpt({"convert", Gguf("writer/source.gguf"), Path("template.gguf")});
  const Outcome outcome = Ckpt(
      {"convert", Gguf("writer/source.gguf"), Path("template.gguf"), "--template=" + Path("template.gguf"), "--force"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("template.gguf"));
}

TEST_F(CkptGgufTest, FlagsThatDoNotApplyAreRefused) {
  const std::string model = Gguf("writer/source.gguf");
  const std::string from = "--template=" + Gguf("writer/model.gguf");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"x.npz", from}, "--template is for --to=gguf, not for npz"},
      {{"x.npz", "--outtype=F16"}, "--outtype is for --to=gguf, not for npz"},
      {{"x.gguf", "--outtype=Q4_K"}, "--outtype=\"Q4_K\", expected F32, F16, Q8_0, BF16, MXFP4"},
      {{"x.gguf", from, "--dtype=bf16"}, "--dtype does not apply with --template"},
      {{"x.gguf", "--world_size=2"}, "a GGUF file is one"},
      {{"x.gguf", "--max_shard_size=1MB"}, "not for --to=gguf"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> words = {"convert", model, Path(arguments[0])};
    words.insert(words.end(), arguments.begin() + 1, arguments.end());
    const Outcome outcome = Ckpt(words);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

}  // namespace
}  // namespace fsdp
