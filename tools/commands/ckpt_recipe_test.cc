// SPDX-License-Identifier: Apache-2.0
//
// ckpt convert --recipe: another layout of a model, from any format to any other.
#include <string>

#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CkptRecipeTest : public CkptTest {
 protected:
  static std::string Case(const std::string& name) { return "checkpoint/recipe/testdata/" + name; }
};

TEST_F(CkptRecipeTest, ALayoutAndItsInverseAreTheModel) {
  const std::string meta = Case("llama_hf_to_meta");
  MustCkpt({"convert", meta + "/before.safetensors", Path("meta.pt"), "--recipe=" + meta + "/recipe.json"});
  MustCkpt({"convert", Path("meta.pt"), Path("back.safetensors"), "--recipe=" + Case("llama_meta_to_hf/recipe.json")});
  MustCkpt({"diff", meta + "/before.safetensors", Path("back.safetensors")});
  EXPECT_THAT(MustCkpt({"inspect", Path("meta.pt"), "--tensors"}), HasSubstr("layers.0.attention.wq.weight"));
}

TEST_F(CkptRecipeTest, ARecipeThatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  const std::string recipe = "--recipe=" + Case("llama_hf_to_meta/recipe.json");
  const Outcome outcome = Ckpt({"convert", Case("cast/before.safetensors"), Path("x.safetensors"), recipe});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("21 of 21 targets of the recipe do not fit"), HasSubstr("recipe.json"),
                                 HasSubstr("the model has no tensor \"model.layers.0.input_layernorm.weight\"")));
  EXPECT_TRUE(NamesIn(Path("")).empty());
  EXPECT_EQ(Ckpt({"convert", Case("cast/before.safetensors"), Path("x.safetensors"), "--recipe=none.json"}).status, 1);
}

}  // namespace
}  // namespace fsdp
