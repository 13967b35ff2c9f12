// SPDX-License-Identifier: Apache-2.0
//
// The confinement of the child; fuzz/fuzz_test.cc tests that damaged files are read or refused.
#include "fsdp/checkpoint/foreign/hdf5/confined_hdf5.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/hdf5/confinement.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::string WriteFull(const std::vector<TestTensor>& tensors) {
  const std::string path = NewTestDirectory() + "/checkpoint";
  const StateDict state = FullState(tensors);
  EXPECT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), {}));
  return path;
}

TEST(ConfinedHdf5Test, ListsEveryDatasetWhereTheManifestSaysItIs) {
  const std::string path = WriteFull(AwkwardTensors());
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(PosixFileSystem(), path));
  ASSERT_OK_AND_ASSIGN(const Hdf5Listing listing, ListUntrustedHdf5(path + "/checkpoint.h5"));
  const std::vector<Hdf5Dataset>& datasets = listing.datasets;
  EXPECT_EQ(listing.left_out_count, 0);
  EXPECT_EQ(datasets.size(), manifest.tensors.size() + manifest.texts.size());
  std::map<std::string, Hdf5Dataset> by_path;
  for (const Hdf5Dataset& dataset : datasets) by_path[dataset.path] = dataset;
  for (const StoredTensor& tensor : manifest.tensors) {
    SCOPED_TRACE(tensor.key.ToString());
    // Of the two hard links of tied weights one is listed.
    const bool is_tied = by_path.count(DatasetPath(tensor.key)) == 0 && tensor.key.fqn == "wte.weight";
    const Hdf5Dataset& dataset = by_path[is_tied ? "/model/lm_head.weight" : DatasetPath(tensor.key)];
    EXPECT_EQ(dataset.type, std::string(DTypeName(tensor.dtype)));
    EXPECT_EQ(dataset.dims, std::vector<int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end()));
    EXPECT_EQ(dataset.layout, "");
    if (tensor.shape.numel() > 0) {
      EXPECT_EQ(dataset.offset, tensor.intervals[0].offset);
    }
  }
  EXPECT_EQ(by_path["/model/100%25%2Fof.\xC3\xA4"].fqn, "100%/of.\xC3\xA4");
  EXPECT_EQ(by_path["/optim/param_groups"].type, "text");
}

TEST(ConfinedHdf5Test, APathWithoutHdf5IsAnErrorThatNamesIt) {
  const std::string directory = NewTestDirectory();
  WriteAll(directory + "/text", "not HDF5");
  ASSERT_EQ(mkfifo((directory + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(ListUntrustedHdf5(directory + "/none"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
  EXPECT_THAT(ListUntrustedHdf5(directory + "/text"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/text: HDF5 cannot open")));
  EXPECT_THAT(ListUntrustedHdf5(directory + "/fifo"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/fifo: it is not a regular file")));
}

TEST(ConfinedHdf5Test, TimeAndOutputAreLimited) {
  const std::string file = WriteFull(AwkwardTensors()) + "/checkpoint.h5";
  EXPECT_THAT(ListUntrustedHdf5(file, {.timeout = absl::ZeroDuration()}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("parsing it took longer than 0")));
  EXPECT_THAT(ListUntrustedHdf5(file, {.output_bytes = 100}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its names take more than 100 bytes")));
}

TEST(ConfinedHdf5Test, ThreadsMayAskAtTheSameTime) {
  const std::string file = WriteFull(AwkwardTensors()) + "/checkpoint.h5";
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) EXPECT_OK(ListUntrustedHdf5(file).status());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each bit of the exit status of a confined child represents a forbidden action that it could still do.
TEST(ConfinementTest, AConfinedProcessCanReadAndDoLittleElse) {
  const std::string directory = NewTestDirectory();
  const std::string file = directory + "/file";
  WriteAll(file, "x");
  const std::string other = directory + "/other";
  const pid_t child = fork();
  if (child == 0) {
    if (close_range(3, ~0U, 0) != 0) _exit(128);
    if (!Confine({.memory_bytes = 64 << 20, .cpu_seconds = 5, .open_files = 4})) _exit(129);
    int could = 0;
    const int first = open(file.c_str(), O_RDONLY);
    char byte = 0;
    if (first < 0 || read(first, &byte, 1) != 1) could |= 1;  // reading one file is allowed
    if (open(file.c_str(), O_RDONLY) >= 0) could |= 2;        // a second one is not
    close(first);
    if (open(other.c_str(), O_WRONLY | O_CREAT, 0600) >= 0) could |= 4;
    if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0) could |= 8;
    if (unlink(file.c_str()) == 0) could |= 16;
    if (kill(getppid(), 0) == 0) could |= 32;
    void* memory = mmap(nullptr, size_t{1} << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) could |= 64;
    _exit(could);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ReadFile(file), "x");
}

}  // namespace
}  // namespace fsdp
