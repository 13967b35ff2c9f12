// SPDX-License-Identifier: Apache-2.0
//
// The graphs of attention checked by the real cuDNN, if it is installed: its heuristics must offer deterministic
// engines for a Hopper GPU. This needs no GPU, because cuDNN takes a description of one; it only needs a driver that
// can be loaded, for which the toolkit's stub is enough. cuda_fused_attention_gpu_test checks that an engine computes
// attention.
#include <dlfcn.h>

#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/cudnn/cudnn_attention_graphs.h"
#include "fsdp/nn/cudnn/cudnn_descriptor.h"
#include "fsdp/nn/cudnn/cudnn_library.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using cudnn::DataType;

// An H100 as cuDNN describes one, by its data sheet.
constexpr char kHopper[] = R"({
  "cudaDeviceId": 0, "deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "driverVer": 13000, "isTccDriver": 0,
  "l2CacheSize": 52428800, "maxBlockSize": [1024, 1024, 64], "maxCtasPerSM": 32,
  "maxGridSize": [2147483647, 65535, 65535], "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "memClockRateKHz": 2619000, "multiProcessorCount": 132, "pciDeviceId": 0, "regsPerBlock": 65536,
  "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000, "supportCoopLaunch": 1,
  "totalGlobalMem": 85000000000, "warpSize": 32})";

// The first of `paths` that can be loaded stays loaded, and cuDNN finds it by its name.
bool Load(std::initializer_list<const char*> paths) {
  for (const char* path : paths) {
    if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
  }
  return false;
}

const absl::StatusOr<CudnnLibrary>& RealCudnn() {
  static const auto* const library = [] {
    auto* found = new absl::StatusOr<CudnnLibrary>(LoadCudnnFrom("libcudnn.so.9"));
    if (!found->ok()) *found = LoadCudnnFrom("/usr/local/cuda/lib64/libcudnn.so.9");
    return found;
  }();
  return *library;
}

struct Variant {
  const char* name;
  CudnnAttentionSizes sizes;
};

Variant Of(const char* name, DataType dtype, CudnnAttentionSizes sizes) {
  sizes.qkv_width = (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim;
  sizes.out_width = sizes.num_heads * sizes.head_dim;
  sizes.all_heads = sizes.num_heads;
  sizes.dtype = dtype;
  return {name, sizes};
}

class CudnnEnginesTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (!RealCudnn().ok()) GTEST_SKIP() << "no cuDNN to ask: " << RealCudnn().status();
    if (!Load({"libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so"}))
      GTEST_SKIP() << "neither a driver nor a stub";
    ASSERT_OK_AND_ASSIGN(hopper_, CudnnDescriptorBuilder(*RealCudnn(), cudnn::DescriptorType::kDeviceProperties)
                                      .SetText(cudnn::Attribute::kDevicePropertiesJson, kHopper)
                                      .Finalize("a Hopper GPU"));
  }

  CudnnDescriptor hopper_;
};

TEST_P(CudnnEnginesTest, ForwardHasAnEngineOnHopper) {
  CudnnGraph graph(*RealCudnn());
  WriteAttentionForward(GetParam().sizes, graph);
  ASSERT_OK_AND_ASSIGN(const int engines, graph.CountEngines(hopper_, "attention"));
  EXPECT_GE(engines, 1);
}

TEST_P(CudnnEnginesTest, BackwardHasADeterministicEngineOnHopper) {
  CudnnGraph graph(*RealCudnn());
  WriteAttentionBackward(GetParam().sizes, graph);
  ASSERT_OK_AND_ASSIGN(const int engines, graph.CountEngines(hopper_, "attention backward"));
  EXPECT_GE(engines, 1);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudnnEnginesTest,
                         testing::Values(Of("Gpt2", DataType::kBFloat16, {8, 12, 12, 1024, 64}),
                                         Of("Gpt2Float16", DataType::kHalf, {8, 12, 12, 1024, 64}),
                                         Of("Llama1B", DataType::kBFloat16, {4, 32, 8, 2048, 64}),
                                         Of("Llama8B", DataType::kBFloat16, {1, 32, 8, 4096, 128}),
                                         Of("OddLength", DataType::kBFloat16, {2, 12, 12, 201, 64}),
                                         Of("OddHeads", DataType::kBFloat16, {2, 12, 4, 201, 80}),
                                         Of("TwoTokens", DataType::kBFloat16, {1, 1, 1, 2, 64})),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp
