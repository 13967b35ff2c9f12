// SPDX-License-Identifier: Apache-2.0
//
// Opening a checkpoint of any format while each of its system calls fails in turn: the same contents, or an error that
// names the cause. A file that cannot be looked at is not one that is not there: a directory is never taken for another
// format, for less than it holds, or for no checkpoint.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/zero_checkpoint_testutil.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using Kind = SystemCallFaults::Kind;

class UnreadableSourceTest : public testing::TestWithParam<int> {
 protected:
  void Write(const std::string& name, const FormatTarget& target) const {
    WriteZeros(root_ + "/" + name, target, {"a", "b", "c"}, 40);
  }

  // The number of values, or -1 for an error that names the cause.
  static int64_t Open(const std::string& path) {
    const absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenTensorSource(path);
    if (source.ok()) return std::ssize((*source)->contents().entries());
    EXPECT_THAT(std::string(source.status().message()),
                AnyOf(HasSubstr(std::strerror(GetParam())), HasSubstr(std::strerror(EIO))));
    return -1;
  }

  const std::string root_ = fs::canonical(NewTestDirectory());
};

// HuggingFaceStorageWriter's parts of two ranks: each has half of "a", and a tensor of its own.
void WriteShards(const std::string& directory) {
  fs::create_directories(directory);
  for (const int rank : {0, 1}) {
    const std::string header = absl::StrCat(
        R"({"__metadata__":{"DCP_VERSION":"1.0","format":"pt","DCP_SHARDING_INFO":"{\"a\":{\"saved_offsets\":[)",
        4 * rank, R"(]},\"b)", rank,
        R"(\":{\"saved_offsets\":[0]}}"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b)", rank,
        R"(":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})");
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
    std::ofstream(absl::StrCat(directory, "/shard-0000", rank + 1, "-model-00001-of-00001.safetensors"))
        << length << header << "123456";
  }
}

TEST_P(UnreadableSourceTest, HasItsContentsOrAnErrorWithTheCause) {
  Write("full", Hdf5Target());
  Write("run/step-00000001", Hdf5Target{.type = StateDictType::kSharded, .world_size = 2});
  Write("one.safetensors", SafetensorsTarget());
  Write("hub", SafetensorsTarget{.max_shard_size = 200});
  Write("model.pt", TorchTarget());
  Write("dcp", DcpTarget());
  Write("model.npz", NpzTarget());
  Write("model.gguf", GgufTarget());
  Write("deepspeed", DeepSpeedTarget());
  Write("megatron", MegatronTarget());
  Write("beside/pytorch_model.bin", TorchTarget());
  WriteShards(root_ + "/shards");
  for (const char* name : {"full", "run", "one.safetensors", "hub", "model.pt", "dcp", "model.npz", "model.gguf",
                           "deepspeed", "megatron", "beside", "shards"}) {
    const std::string path = root_ + "/" + name;
    SystemCallFaults::Begin(Kind::kFail, 0, GetParam());
    const int64_t values = Open(path);
    const int64_t calls = SystemCallFaults::End();
    ASSERT_GT(values, 0) << name;
    for (const Kind kind : {Kind::kFail, Kind::kFailFrom}) {
      for (int64_t k = 1; k <= calls; ++k) {
        SCOPED_TRACE(absl::StrCat(name, ": ", std::strerror(GetParam()), " at call ", k));
        SystemCallFaults::Begin(kind, k, GetParam());
        const int64_t found = Open(path);
        SystemCallFaults::End();
        EXPECT_THAT(found, AnyOf(values, -1));
      }
    }
  }
}

TEST_P(UnreadableSourceTest, LacksItsStepOnlyWithTheCause) {
  const std::string path = root_ + "/trained";
  Write("trained/model.safetensors", SafetensorsTarget());
  std::ofstream(path + "/trainer_state.json") << R"({"global_step": 7})";
  SystemCallFaults::Begin(Kind::kFail, 0, GetParam());
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<TensorSource> whole, OpenTensorSource(path));
  const int64_t calls = SystemCallFaults::End();
  ASSERT_EQ(whole->step(), 7);
  for (int64_t k = 1; k <= calls; ++k) {
    SystemCallFaults::Begin(Kind::kFail, k, GetParam());
    const absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenTensorSource(path);
    SystemCallFaults::End();
    if (!source.ok() || (*source)->step() == 7) continue;
    EXPECT_THAT((*source)->layout().notes, Contains(HasSubstr(std::strerror(GetParam())))) << "call " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Causes, UnreadableSourceTest, testing::Values(EIO, ESTALE, EMFILE),
                         [](const testing::TestParamInfo<int>& info) { return absl::StrCat("Errno", info.param); });

}  // namespace
}  // namespace fsdp
