// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/formats/known_paths.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Says that each of two ranks has an optimizer_RANK.pt and a shards/model-RANK.safetensors.
constexpr char kItemsMetadata[] =
    "checkpoint/foreign/torch_checkpointing/testdata/fsdp2_w2_safetensors/ckpt/metadata.pkl";

// A file with a safetensors header and no tensors.
const std::string& EmptyModel() {
  static const auto* const bytes = new std::string(std::string("\x08\0\0\0\0\0\0\0", 8) + "{}      ");
  return *bytes;
}

struct Example {
  std::string row;
  std::vector<std::string> files;  // relative to the test's directory; what ends in ".safetensors" is one
  std::string given;               // the path to open
  std::string message;             // with DIR for the test's directory
};

std::vector<Example> FileExamples() {
  return {
      {"file of DCP",
       {"dcp/.metadata", "dcp/__0_0.distcp"},
       "dcp/__0_0.distcp",
       "is one file of a DCP directory: give the directory, `ckpt inspect DIR/dcp`"},
      {"file of DCP", {"dcp/.metadata"}, "dcp/.metadata", "`ckpt inspect DIR/dcp`"},
      {"file of DeepSpeed",
       {"global_step3/mp_rank_00_model_states.pt", "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt"},
       "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
       "is one rank's part of a checkpoint of DeepSpeed: give the directory, `ckpt inspect DIR/global_step3`"},
      {"file of Orbax",
       {"7/default/manifest.ocdbt"},
       "7/default/manifest.ocdbt",
       "is one file of an Orbax checkpoint: give the directory, `ckpt inspect DIR/7/default`"},
      {"file of Orbax", {"o/_METADATA"}, "o/_METADATA", "`ckpt inspect DIR/o`"},
      {"file of Orbax", {"o/_CHECKPOINT_METADATA"}, "o/_CHECKPOINT_METADATA", "`ckpt inspect DIR/o`"},
      {"shard of HuggingFaceStorageWriter",
       {"s/shard-00001-model-00001-of-00001.safetensors"},
       "s/shard-00001-model-00001-of-00001.safetensors",
       "HuggingFaceStorageWriter: give the directory, `ckpt inspect DIR/s`"},
      {"rank of Megatron-Core",
       {"iter_3/mp_rank_00/model_optim_rng.pt"},
       "iter_3/mp_rank_00/model_optim_rng.pt",
       "give the directory of all ranks, `ckpt inspect DIR/iter_3`"},
      {"part of torch_checkpointing",
       {"c/metadata.pkl", "c/shards/model-1.safetensors"},
       "c/shards/model-1.safetensors",
       "is one rank's part of a checkpoint of torch_checkpointing: give the directory, `ckpt inspect DIR/c`"},
      {"part of torch_checkpointing", {"c/metadata.pkl", "c/optimizer_0.pt"}, "c/optimizer_0.pt", "inspect DIR/c`"},
      {"part of Meta's model",
       {"llama/consolidated.00.pth", "llama/consolidated.01.pth", "llama/params.json"},
       "llama/consolidated.01.pth",
       "is one of the parts consolidated.00.pth and consolidated.01.pth of a model, whose tensors are cut"},
      {"common.pt of Megatron-Core", {"i/common.pt", "i/.metadata"}, "i/common.pt", "`ckpt inspect DIR/i`"},
      {"text of a trainer",
       {"run/latest", "run/zero_to_fp32.py", "run/checkpoint/mp_rank_00_model_states.pt"},
       "run/latest",
       "names the newest checkpoint of a directory: give that, `ckpt inspect DIR/run`"},
      {"file of TensorFlow", {"s/saved_model.pb"}, "s/saved_model.pb", "(tf.train.load_checkpoint)"},
      {"file of TensorFlow",
       {"t/checkpoint", "t/m-3.index", "t/m-3.data-00000-of-00001"},
       "t/checkpoint",
       "is one file of a checkpoint of TensorFlow"},
      {"file of TensorFlow", {"t/m-3.index", "t/m-3.data-00000-of-00001"}, "t/m-3.index", "TensorFlow"},
      {"JSON of a checkpoint", {"m/model.safetensors", "m/config.json"}, "m/config.json", "`ckpt inspect DIR/m`"},
      {"JSON of a checkpoint",
       {"m/model.safetensors.index.json"},
       "m/model.safetensors.index.json",
       "`ckpt inspect DIR/m`"},
  };
}

std::vector<Example> DirectoryExamples() {
  return {
      {"DCP without .metadata", {"d/__0_0.distcp", "d/__1_0.distcp"}, "d", "without DCP's .metadata"},
      {"DCP without .metadata", {"d/__0_0.distcp", "d/__0.metadata"}, "d", "without collectives"},
      {"PEFT", {"a/adapter_config.json", "a/README.md"}, "a/", "its adapter_model.safetensors is missing"},
      {"PEFT", {"a/adapter_config.json", "a/lora.bin", "a/optimizer.pt"}, "a", "`ckpt inspect DIR/a/lora.bin`"},
      {"diffusers",
       {"p/model_index.json", "p/unet/diffusion_pytorch_model.safetensors", "p/text_encoder/model.safetensors",
        "p/scheduler/scheduler_config.json"},
       "p",
       "the components text_encoder and unet: give one, `ckpt inspect DIR/p/text_encoder`"},
      {"diffusers",
       {"p/model_index.json", "p/vae/diffusion_pytorch_model.safetensors"},
       "p",
       "`ckpt inspect DIR/p/vae/diffusion_pytorch_model.safetensors`"},
      {"model in the hub's cache",
       {"models--a--b/snapshots/c0ffee/model.safetensors", "models--a--b/refs/main"},
       "models--a--b",
       "`ckpt inspect DIR/models--a--b/snapshots/c0ffee`"},
      {"hub's cache",
       {"hub/models--a--b/snapshots/c0ffee/model.safetensors"},
       "hub",
       "give a model's snapshot, `ckpt inspect DIR/hub/models--a--b/snapshots/c0ffee`"},
      {"GGUF",
       {"g/a.gguf", "g/mmproj-a.gguf"},
       "g",
       "holds several models in GGUF, a.gguf and mmproj-a.gguf: give one, `ckpt inspect DIR/g/a.gguf`"},
      {"DeepSpeed",
       {"run/zero_to_fp32.py", "run/global_step3/mp_rank_00_model_states.pt"},
       "run",
       "without the file `latest`: give a checkpoint of it, `ckpt inspect DIR/run/global_step3`"},
      {"DeepSpeed", {"run/zero_to_fp32.py", "run/latest"}, "run", "but no checkpoint"},
      {"rank of Megatron-Core",
       {"iter_3/mp_rank_00/model_optim_rng.pt", "iter_3/mp_rank_01/model_optim_rng.pt"},
       "iter_3/mp_rank_01",
       "is one rank's part of a checkpoint of Megatron-Core: give the directory of all ranks, `ckpt inspect "
       "DIR/iter_3`"},
      {"others", {"o/.snapshot_metadata"}, "o", "torchsnapshot"},
      {"others", {"t/checkpoint", "t/m-3.index", "t/m-3.data-00000-of-00001"}, "t", "is a checkpoint of TensorFlow"},
      {"checkpoints",
       {"run/checkpoint-500/model.safetensors", "run/checkpoint-1000/model.safetensors"},
       "run",
       "holds several, checkpoint-1000 and checkpoint-500: give one, `ckpt inspect DIR/run/checkpoint-1000`"},
      {"checkpoints",
       {"c/pytorch_model_fsdp_0/.metadata", "c/optimizer_0/.metadata", "c/scheduler.bin", "c/random_states_0.pkl"},
       "c",
       "holds several, optimizer_0 and pytorch_model_fsdp_0"},
      {"parts without an index",
       {"m/model-00001-of-00002.safetensors", "m/model-00002-of-00002.safetensors"},
       "m",
       "without their index: get model.safetensors.index.json"},
      {"parts without an index",
       {"m/a-00001-of-00001.safetensors", "m/a.safetensors.index.json", "m/b.safetensors.index.json"},
       "m",
       "the indexes a.safetensors.index.json and b.safetensors.index.json: keep one"},
      {"parts without an index", {"m/pytorch_model-00001-of-00002.bin"}, "m", "get pytorch_model.bin.index.json"},
      {"files",
       {"e/epoch_0.pt", "e/epoch_1.pt"},
       "e",
       "holds 2 files of weights, epoch_0.pt and epoch_1.pt, and nothing says that they are parts of one checkpoint: "
       "give one of the files, `ckpt inspect DIR/e/epoch_1.pt`"},
      {"files", {"e/rank0.pt", "e/rank2.pt"}, "e", "give one of the files"},
      {"files", {"e/ckpt_2.pt", "e/ckpt_10.pt"}, "e", "`ckpt inspect DIR/e/ckpt_10.pt`"},
      {"files", {"my e/a.pt", "my e/it's b.pt"}, "my e", "`ckpt inspect 'DIR/my e/it'\\''s b.pt'`"},
      {"file", {"c/checkpoint-10.pt", "c/train.log"}, "c", "`ckpt inspect DIR/c/checkpoint-10.pt`"},
      {"file", {"m/consolidated.safetensors", "m/params.json"}, "m", "`ckpt inspect DIR/m/consolidated.safetensors`"},
      {"file",
       {"m/consolidated.00.pth", "m/params.json", "m/tokenizer.model"},
       "m",
       "`ckpt inspect DIR/m/consolidated.00.pth`"},
      {"file", {"l/epoch=0-step=10.ckpt"}, "l", "epoch=0-step=10.ckpt"},
      {"save that was never committed",
       {"r/.step-00000004.tmp-5a5a5a5a5a5a5a5a/rank-00000-of-00001.h5", "r/metrics.jsonl"},
       "r",
       "never committed: `ckpt prune DIR/r --keep_last=1 --dry_run` lists it"},
      {"checkpoints below",
       {"x/lr1/steps/step-2/model.safetensors", "x/lr1/steps/step-10/model.safetensors", "x/lr1/a/b/model.safetensors"},
       "x",
       "has some in it, lr1/a/b, lr1/steps/step-2 and lr1/steps/step-10: give one, `ckpt inspect "
       "DIR/x/lr1/steps/step-10`"},
      {"checkpoints below",
       {"h/hub/models--a/snapshots/c0/model.safetensors"},
       "h",
       "`ckpt inspect DIR/h/hub/models--a/snapshots/c0`"},
  };
}

void ExpectMessages(const std::vector<Example>& examples, const std::vector<KnownPath>& rows) {
  std::set<std::string> tested;
  for (const Example& example : examples) {
    const std::string directory = NewTestDirectory();
    for (const std::string& file : example.files) {
      const fs::path path = fs::path(directory) / file;
      fs::create_directories(path.parent_path());
      const bool is_ref = path.filename() == "main";
      if (path.filename() == "metadata.pkl") {
        fs::copy_file(kItemsMetadata, path);
        continue;
      }
      WriteAll(path, is_ref ? "c0ffee\n" : path.extension() == ".safetensors" ? EmptyModel() : "x");
    }
    std::string message = example.message;
    if (const size_t at = message.find("DIR/"); at != message.npos) message.replace(at, 3, directory);
    EXPECT_THAT(FindFormat(directory + "/" + example.given),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << example.row;
    tested.insert(example.row);
  }
  for (const KnownPath& row : rows) EXPECT_EQ(tested.count(std::string(row.name)), 1) << row.name;
}

TEST(KnownPathsTest, EveryPartOfACheckpointIsRefusedWithTheDirectoryToGive) {
  ExpectMessages(FileExamples(), KnownFiles());
}

TEST(KnownPathsTest, EveryDirectoryThatIsNoCheckpointIsRefusedWithThePathToGive) {
  ExpectMessages(DirectoryExamples(), KnownDirectories());
}

// refs/main is a text of the cache's owner, and becomes a part of a path.
TEST(KnownPathsTest, ARefThatLeadsElsewhereIsNotFollowed) {
  const std::string directory = NewTestDirectory() + "/models--a--b";
  for (const char* name : {"refs", "snapshots"}) fs::create_directories(directory + "/" + name);
  WriteAll(directory + "/refs/main", "../../../etc\n");
  EXPECT_THAT(FindFormat(directory), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("snapshots/REVISION`")));
}

TEST(KnownPathsTest, AnAdapterIsReadAsTheTensorsThatItHolds) {
  const std::string directory = NewTestDirectory();
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "optimizer.pt"}) {
    WriteAll(directory + "/" + name, std::string(name) == "adapter_model.safetensors" ? EmptyModel() : "{}");
  }
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory));
  EXPECT_THAT(source->layout().notes, testing::ElementsAre(HasSubstr("an adapter of PEFT, not a whole model")));
  EXPECT_THAT(source->left_out(), testing::ElementsAre(HasSubstr("\"optimizer.pt\"")));
  // The same in torch's format.
  std::filesystem::remove(directory + "/adapter_model.safetensors");
  StateDict model;
  model.Set(StateKey::Model("base_model.model.q.lora_A.weight"), ShardedTensor{DType::kFloat32, {0, 4}, {}});
  ASSERT_OK(MakeWriter(TorchTarget())
                ->Write(directory + "/adapter.pt", {.state = model}, ReadFromMemory(model), FormatWriteOptions()));
  std::filesystem::rename(directory + "/adapter.pt", directory + "/adapter_model.bin");
  ASSERT_OK_AND_ASSIGN(const auto torch, OpenTensorSource(directory));
  EXPECT_TRUE(torch->contents().contains(StateKey::Model("base_model.model.q.lora_A.weight")));
  EXPECT_THAT(torch->layout().notes, testing::ElementsAre(HasSubstr("an adapter of PEFT")));
}

TEST(KnownPathsTest, AModelBesideATrainersFilesIsReadAndTheyAreNamed) {
  const std::string directory = NewTestDirectory();
  for (const char* name :
       {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}) {
    WriteAll(directory + "/" + name, std::string(name) == "model.safetensors" ? EmptyModel() : "x");
  }
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(directory));
  EXPECT_THAT(source->left_out(), testing::ElementsAre(HasSubstr("\"optimizer.pt\""), HasSubstr("\"rng_state.pth\""),
                                                       HasSubstr("\"scheduler.pt\"")));
}

TEST(KnownPathsTest, AnIndexThatIsAPointerOfGitLfsIsNamedAsOne) {
  const std::string directory = NewTestDirectory();
  WriteAll(directory + "/model.safetensors", EmptyModel());
  const std::string index = directory + "/pytorch_model.bin.index.json";
  WriteAll(index,
           absl::StrCat("version https://git-lfs.github.com/spec/v1\noid sha256:", std::string(64, 'a'), "\nsize 9\n"));
  EXPECT_THAT(FindFormat(index), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Git LFS pointer")));
}

TEST(KnownPathsTest, AFileOfAnyNameIsFoundByItsContents) {
  const std::string directory = NewTestDirectory();
  fs::create_directories(directory + "/a/b");
  WriteAll(directory + "/a/b/weights", EmptyModel());
  for (const char* path : {"", "/a", "/a/b"}) {
    EXPECT_THAT(FindFormat(directory + path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a/b/weights`")))
        << path;
  }
}

// A link to a directory above would be followed for ever, and a FIFO would wait for a writer.
TEST(KnownPathsTest, ASearchEndsInAnyTree) {
  const std::string directory = NewTestDirectory();
  fs::create_directories(directory + "/a/.hidden");
  fs::create_directory_symlink("..", directory + "/a/up");
  WriteAll(directory + "/a/.hidden/model.safetensors", EmptyModel());
  ASSERT_EQ(mkfifo((directory + "/a/fifo").c_str(), 0600), 0);
  for (int i = 0; i < 2100; ++i) fs::create_directory(absl::StrCat(directory, "/a/d", i));
  fs::create_directory(directory + "/a/d7/x");
  WriteAll(directory + "/a/d7/x/model.safetensors", EmptyModel());
  EXPECT_THAT(FindFormat(directory),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a checkpoint: expected")));
}

}  // namespace
}  // namespace fsdp
