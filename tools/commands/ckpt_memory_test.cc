// SPDX-License-Identifier: Apache-2.0
//
// The memory of whole commands on very many tensors: the peak of the process, minus the peak of the same command on a
// tiny file, for files as torch.save and DCP write them. docs/formats.md states the rule.
#include <cstdint>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/deepspeed/zero_testutil.h"
#include "fsdp/checkpoint/foreign/torch/many_tensors.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using CkptMemoryTest = CkptTest;

constexpr int64_t kAllowance = int64_t{64} << 20;

int64_t SizeOfFile(const std::string& path) { return static_cast<int64_t>(std::filesystem::file_size(path)); }

// Regression: ids were matched with the model's names in maps of strings, the last text doubled the table of all
// tensors, and verify kept a record of each: 168 MB more than for a tiny file, of 70,000 parameters with 27.6 MB of
// pickle.
TEST_F(CkptMemoryTest, ACommandOnAModelWithAdamWCostsTwiceThePickleAnd64MiB) {
  WriteFile(Path("tiny.pt"), ManyTensorsArchive(1, /*has_optimizer=*/true));
  for (const int parameters : {40'000, 60'000}) {
    const std::string file = Path("large.pt");
    WriteFile(file, ManyTensorsArchive(parameters, /*has_optimizer=*/true));
    const auto pickle = static_cast<int64_t>(ManyTensorsPickle(parameters, /*has_optimizer=*/true).size());
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"inspect"}, {"verify"}, {"inspect", "--json", "--tensors"}}) {
      std::vector<std::string> on_tiny = command;
      std::vector<std::string> on_large = command;
      on_tiny.push_back(Path("tiny.pt"));
      on_large.push_back(file);
      const Outcome large = Ckpt(on_large);
      EXPECT_EQ(large.status, 0) << large.err;
      EXPECT_LE(large.peak_bytes - Ckpt(on_tiny).peak_bytes, 2 * pickle + kAllowance)
          << command.front() << " of " << parameters;
    }
  }
}

// A pickle that would take more is refused, with the byte and the limit in the message, before it takes that much.
TEST_F(CkptMemoryTest, MoreThanTheLimitIsRefusedAndNotTaken) {
  WriteFile(Path("tiny.pt"), ManyTensorsArchive(1, /*has_optimizer=*/true));
  WriteFile(Path("large.pt"), ManyTensorsArchive(150'000, /*has_optimizer=*/true));
  const auto pickle = static_cast<int64_t>(ManyTensorsPickle(150'000, /*has_optimizer=*/true).size());
  const Outcome refused = Ckpt({"verify", Path("large.pt")});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.out, testing::HasSubstr(absl::StrCat("more than ", 2 * pickle + kAllowance, " bytes")));
  EXPECT_THAT(refused.out, testing::HasSubstr("byte "));
  EXPECT_LE(refused.peak_bytes - Ckpt({"verify", Path("tiny.pt")}).peak_bytes, 2 * pickle + kAllowance);
}

// A conversion also holds the names and places that it writes: the header of safetensors, the pickle of a .pt.
TEST_F(CkptMemoryTest, AConversionCostsWhatItWritesOfNamesInAddition) {
  constexpr int kTensors = 60'000;
  WriteFile(Path("tiny.pt"), ManyTensorsArchive(1, /*has_optimizer=*/false));
  WriteFile(Path("large.pt"), ManyTensorsArchive(kTensors, /*has_optimizer=*/false));
  const auto pickle = static_cast<int64_t>(ManyTensorsPickle(kTensors, /*has_optimizer=*/false).size());
  for (const std::string target : {"x.safetensors", "x.pt"}) {
    const Outcome large = Ckpt({"convert", Path("large.pt"), Path(target)});
    EXPECT_EQ(large.status, 0) << large.err;
    const int64_t written = SizeOfFile(Path(target)) - 16 * kTensors;
    std::filesystem::remove(Path(target));
    const Outcome tiny = Ckpt({"convert", Path("tiny.pt"), Path(target)});
    std::filesystem::remove(Path(target));
    EXPECT_LE(large.peak_bytes - tiny.peak_bytes, 2 * pickle + kAllowance + written) << target;
  }
}

// With the least memory that a conversion of very many tensors accepts, it takes no more than that.
TEST_F(CkptMemoryTest, AConversionTakesNoMoreThanTheMemoryThatItAsksFor) {
  WriteFile(Path("model.pt"), ManyTensorsArchive(60'000, /*has_optimizer=*/false));
  MustCkpt({"convert", Path("model.pt"), Path("model.safetensors")});
  for (const std::string target : {"safetensors", "torch", "dcp", "hdf5"}) {
    const std::vector<std::string> command = {"convert", Path("model.safetensors"), Path("to." + target),
                                              "--to=" + target, "--max_memory=64MiB"};
    const Outcome refused = Ckpt(command);
    EXPECT_EQ(refused.status, 1) << target;
    std::smatch mebibytes;
    ASSERT_TRUE(std::regex_search(refused.err, mebibytes, std::regex("([0-9]+)MiB would do"))) << refused.err;
    std::vector<std::string> allowed = command;
    allowed.back() = absl::StrCat("--max_memory=", mebibytes[1].str(), "MiB");
    const Outcome done = Ckpt(allowed);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_LE(done.peak_bytes, std::stoll(mebibytes[1].str()) << 20) << target;
  }
}

// Regression: a chunk of .metadata took 800 bytes of memory for 140 bytes of pickle or more.
TEST_F(CkptMemoryTest, ACommandOnADirectoryOfDcpCostsTwiceItsMetadataAnd64MiB) {
  for (const auto& [name, tensors] : {std::pair("tiny", 1), {"large", 30'000}}) {
    WriteFile(Path("model.pt"), ManyTensorsArchive(tensors, /*has_optimizer=*/false));
    MustCkpt({"convert", Path("model.pt"), Path(name), "--to=dcp"});
  }
  const int64_t metadata = SizeOfFile(Path("large/.metadata"));
  for (const char* command : {"inspect", "verify"}) {
    const Outcome large = Ckpt({command, Path("large")});
    EXPECT_EQ(large.status, 0) << large.err;
    EXPECT_LE(large.peak_bytes - Ckpt({command, Path("tiny")}).peak_bytes, 2 * metadata + kAllowance) << command;
  }
}

// However many ranks: each of them has a part of every tensor.
TEST_F(CkptMemoryTest, AConversionOfManyRanksOfZero3TakesItsBufferAnd64MiB) {
  WriteSparseZero3(Path("zero"), /*ranks=*/64, /*parameters=*/1000, /*numel=*/20'000);
  constexpr int64_t kBuffer = int64_t{160} << 20;  // 240 MB are written
  for (const std::string target : {"hdf5", "torch", "safetensors"}) {
    const Outcome done = Ckpt({"convert", Path("zero"), Path("to." + target), "--to=" + target, "--max_memory=160MiB"});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, testing::HasSubstr(target == "safetensors" ? "1000 tensors, 80 MB" : " tensors, 240 MB"));
    EXPECT_LE(done.peak_bytes, kBuffer + kAllowance) << target;
    std::filesystem::remove_all(Path("to." + target));
  }
}

// Nobody may count the ranks of a world that only the manifest knows: of a hybrid strategy few ranks write.
TEST_F(CkptMemoryTest, AWorldThatAManifestCallsHugeCostsNothing) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {30, 10};
  state.Set(StateKey::Model("w"), tensor);
  for (const char* name : {"true", "huge"}) {
    ASSERT_OK(WriteCheckpointDirectory(Path(name), state, ZeroPayload(),
                                       {.type = StateDictType::kSharded, .world_size = 2, .parity = 1}));
  }
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), Path("huge")));
  const std::vector<std::vector<std::string>> commands = {{"verify"},
                                                          {"inspect"},
                                                          {"inspect", "--json"},
                                                          {"inspect", "--html=" + Path("page.html")},
                                                          {"repair", "--dry_run"},
                                                          {"convert", Path("out.pt"), "--force"}};
  for (const int64_t world_size : {int64_t{99'999}, int64_t{100'000}, int64_t{5'000'000}, int64_t{2'147'483'647}}) {
    for (const bool all_write : {false, true}) {
      Manifest claimed = manifest;
      claimed.save.world_size = static_cast<int>(world_size);
      if (all_write) claimed.save.writers = static_cast<int>(world_size);
      WriteFile(Path("huge/manifest.json"), EncodeManifest(claimed));
      for (std::vector<std::string> command : commands) {
        SCOPED_TRACE(absl::StrCat(command[0], ", a world of ", world_size, all_write ? ", all write" : ""));
        const auto run = [&](const std::string& name) {
          std::vector<std::string> arguments = command;
          arguments.insert(arguments.begin() + 1, Path(name));
          return Ckpt(arguments);
        };
        const Outcome huge = run("huge");
        EXPECT_LE(huge.peak_bytes - run("true").peak_bytes, kAllowance);
        if (huge.status != 0) {
          EXPECT_THAT(huge.out + huge.err,
                      testing::AnyOf(testing::HasSubstr("99999"), testing::HasSubstr("too much for --max_memory")));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
