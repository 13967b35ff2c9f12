// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of states in a GPU's memory.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/checkpoint/source/device_read.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kRanks = 2;

class GpuCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *device;
    ASSERT_OK_AND_ASSIGN(stream_, device_->CreateStream("test"));
  }

  // The same elements in other memory: the GPU's, or pinned.
  absl::StatusOr<StateDict> Copy(const StateDict& state, bool to_gpu) {
    StateDict copied = state;
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      ShardedTensor moved = *tensor;
      for (ShardedTensor::Shard& shard : moved.shards) {
        const int64_t nbytes = shard.data.nbytes();
        FSDP_ASSIGN_OR_RETURN(Buffer buffer, to_gpu ? device_->Allocate(nbytes) : device_->AllocatePinned(nbytes));
        stream_->CopyAsync(buffer.data(), shard.data.data(), nbytes);
        shard.data = Tensor(std::move(buffer), shard.data.dtype(), shard.data.shape());
      }
      copied.Set(key, std::move(moved));
    }
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return copied;
  }

  // Changes the state in stream order, as the next step's update does.
  static void Overwrite(const StateDict& state, Stream& stream) {
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      for (const ShardedTensor::Shard& shard : tensor->shards) stream.device().ops().Zero(shard.data, stream);
    }
  }

  // Loads `path` directly to the GPU and checks it.
  void ExpectLoads(const std::string& path, int64_t buffer_bytes) {
    const std::vector<TestTensor> tensors = AwkwardTensors();
    ASSERT_OK_AND_ASSIGN(StateDict wanted, Copy(WantedState(tensors, 1, 0), /*to_gpu=*/true));
    if (buffer_bytes == 0) {
      EXPECT_OK(LoadCheckpoint(path, wanted, {.device = device_.get()}));
    } else {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(2, "test"));
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TensorSource> source, OpenTensorSource(path));
      EXPECT_OK(ReadToDevice(*source, ReadsOf(wanted), *device_, *pool, buffer_bytes));
      for (const auto& [key, value] : source->contents().entries()) {
        if (const auto* text = std::get_if<std::string>(&value)) wanted.Set(key, *text);
      }
    }
    ASSERT_OK_AND_ASSIGN(const StateDict loaded, Copy(wanted, /*to_gpu=*/false));
    EXPECT_OK(CheckState(tensors, loaded));
  }

  static std::vector<DeviceRead> ReadsOf(StateDict& wanted) {
    std::vector<DeviceRead> reads;
    for (const auto& [key, value] : wanted.entries()) {
      if (const auto* tensor = std::get_if<ShardedTensor>(&value)) {
        for (const ShardedTensor::Shard& shard : tensor->shards) {
          reads.push_back({{key, shard.interval, tensor->dtype, shard.data.data_as<std::byte>()}, shard.data.buffer()});
        }
      }
    }
    return reads;
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(GpuCheckpointTest, ASaveStagesTheGpusMemoryDuringTheNextStep) {
  for (const int64_t staging_bytes : {int64_t{0}, int64_t{1} << 20}) {
    const std::string root = NewTestDirectory();
    std::vector<StateDict> states;
    for (int r = 0; r < kRanks; ++r) {
      ASSERT_OK_AND_ASSIGN(StateDict state,
                           Copy(StateOf(StateDictType::kSharded, AwkwardTensors(), kRanks, r), /*to_gpu=*/true));
      states.push_back(std::move(state));
    }
    ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({device_, device_}));
    ASSERT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& meeting) -> absl::Status {
      const int rank = meeting->rank();
      const std::unique_ptr<ProcessGroup> group = std::move(groups[rank]);
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> compute, device_->CreateStream("compute"));
      AsyncSaverOptions options;
      options.staging_bytes = staging_bytes;
      FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group, options));
      for (const int64_t step : {1, 2}) {
        FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver->Save(states[rank], step, compute.get()));
        EXPECT_EQ(report.unstaged_bytes, 0);
        EXPECT_GT(report.staged_bytes, 4 << 20);
        if (step == 1) continue;
        compute->Wait(report.copied);
        Overwrite(states[rank], *compute);
      }
      FSDP_RETURN_IF_ERROR(compute->Synchronize());
      return saver->Wait().status();
    }));
    ExpectLoads(root + "/step-00000001", 0);
    ExpectLoads(root + "/step-00000002", 0);
    ExpectLoads(root + "/step-00000002", 5000);
  }
}

TEST_F(GpuCheckpointTest, WithoutAStreamTheStateMayChangeOnceSaveReturns) {
  const std::string root = NewTestDirectory();
  ASSERT_OK_AND_ASSIGN(const StateDict state,
                       Copy(StateOf(StateDictType::kLocal, AwkwardTensors(), 1, 0), /*to_gpu=*/true));
  ASSERT_OK_AND_ASSIGN(const auto groups, CreateLocalCudaGroups({device_}));
  ASSERT_OK_AND_ASSIGN(const auto saver, AsyncSaver::Create(root, *groups[0]));
  ASSERT_OK(saver->Save(state, 1));
  Overwrite(state, *stream_);
  ASSERT_OK(stream_->Synchronize());
  ASSERT_OK(saver->Wait());
  ExpectLoads(root + "/step-00000001", 0);
}

// A save that waited would end the host's work with an error, which is the state's.
TEST_F(GpuCheckpointTest, ASaveReturnsBeforeTheStateIsComputed) {
  const std::string root = NewTestDirectory();
  ASSERT_OK_AND_ASSIGN(const StateDict state,
                       Copy(StateOf(StateDictType::kLocal, AwkwardTensors(), 1, 0), /*to_gpu=*/true));
  ASSERT_OK_AND_ASSIGN(const auto groups, CreateLocalCudaGroups({device_}));
  ASSERT_OK_AND_ASSIGN(const auto saver, AsyncSaver::Create(root, *groups[0]));
  std::promise<void> returned;
  stream_->Run([has_returned = returned.get_future().share()] {
    return has_returned.wait_for(std::chrono::seconds(20)) == std::future_status::ready
               ? absl::OkStatus()
               : absl::DeadlineExceededError("Save waited for the state");
  });
  ASSERT_OK(saver->Save(state, 1, stream_.get()));
  returned.set_value();
  ASSERT_OK(saver->Wait());
  ExpectLoads(root + "/step-00000001", 0);
}

TEST_F(GpuCheckpointTest, AGpusTensorsAreRefusedByNameWhereTheHostIsToReadOrWriteThem) {
  const std::string root = NewTestDirectory();
  const StateDict on_host = StateOf(StateDictType::kSharded, AwkwardTensors(), 1, 0);
  ASSERT_OK_AND_ASSIGN(StateDict on_gpu, Copy(on_host, /*to_gpu=*/true));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("is in the memory of cuda:0"));
  ASSERT_OK_AND_ASSIGN(const auto groups, CreateLocalCudaGroups({device_}));
  EXPECT_THAT(SaveCheckpoint(on_gpu, root, 1, *groups[0]).status(), refused);
  ASSERT_OK_AND_ASSIGN(const std::string path, SaveCheckpoint(on_host, root, 1, *groups[0]));
  EXPECT_THAT(LoadCheckpoint(path, on_gpu), refused);
  EXPECT_OK(LoadCheckpoint(path, on_gpu, {.device = device_.get()}));
}

TEST_F(GpuCheckpointTest, ACopyThatFailsIsTheErrorOfTheSaveOnEveryRank) {
  const std::string root = NewTestDirectory();
  ASSERT_OK_AND_ASSIGN(const StateDict state,
                       Copy(StateOf(StateDictType::kSharded, AwkwardTensors(), 1, 0), /*to_gpu=*/true));
  ASSERT_OK_AND_ASSIGN(const auto groups, CreateLocalCudaGroups({device_}));
  ASSERT_OK_AND_ASSIGN(const auto saver, AsyncSaver::Create(root, *groups[0]));
  stream_->Run([] { return absl::DataLossError("the step before went wrong"); });
  ASSERT_OK(saver->Save(state, 1, stream_.get()));
  EXPECT_THAT(saver->Wait().status(),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("the step before went wrong")));
  EXPECT_THAT(ListNames(root), testing::IsEmpty());
}

}  // namespace
}  // namespace fsdp
