// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a CUDA device, a line of JSON for each, on the sizes of GPT-2 124M (8 rows of 1,024 tokens) and of
// llama-3.2-1b (4 of 2,048). Kernels that memory bounds are compared with a copy of as many bytes within device memory
// in the same run; products and attention are given in operations per second:
//
//   {"kernel": "gelu", "shape": "gpt2 8192x3072", "dtype": "bfloat16", "microseconds": ..., "spread": ..., "gb_per_s":
//    ..., "of_copy": ...}
//   {"kernel": "head", "shape": "gpt2 8192x768x50257", ..., "tflop_per_s": ...}
//
// kernel_runner.h describes how times are measured. For causal attention only the lower triangle's operations count.
// The last line gives the number of kernels that were measured, and of those that were not because --seconds had
// passed. Kernels come in the order of the time that a step of GPT-2 spends on them. --tiny measures everything on
// sizes for the emulator, whose times mean nothing.
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/benchmark/kernel_cases.h"
#include "fsdp/optim/benchmark/kernel_runner.h"

ABSL_FLAG(std::string, filter, "", "only kernels whose \"name, shape\" contains this, such as \"head\" or \", llama\"");
ABSL_FLAG(std::string, dtypes, "bfloat16", "bfloat16, float32 or both, with a comma between");
ABSL_FLAG(double, seconds, 0, "measure no further kernel after so many (0: all)");
ABSL_FLAG(int, rounds, 7, "bursts of each kernel, of whose times the median counts; 1 or more");
ABSL_FLAG(bool, tiny, false, "the same kernels on tiny operands, as a test");

namespace fsdp {
namespace {

const ModelSizes kGpt2 = {"gpt2", false, 8, 1024, 768, 3072, 12, 12, 64, 50257};
const ModelSizes kLlama = {"llama", true, 4, 2048, 2048, 8192, 32, 8, 64, 128256};
const ModelSizes kTinyGpt2 = {"gpt2", false, 2, 16, 32, 128, 2, 2, 16, 211};
const ModelSizes kTinyLlama = {"llama", true, 2, 16, 32, 64, 2, 1, 16, 307};

constexpr int64_t kFlatNumel = 25 << 20;  // of a flat buffer
constexpr int64_t kTinyFlatNumel = 1 << 12;

// Heads of 64 and 128 at 8,192 tokens.
std::vector<AttentionShape> AttentionShapes(bool tiny) {
  if (tiny) {
    return {{.batch = 2, .seq_len = 16, .num_heads = 2, .num_kv_heads = 2, .head_dim = 64},
            {.batch = 1, .seq_len = 32, .num_heads = 2, .num_kv_heads = 1, .head_dim = 128}};
  }
  std::vector<AttentionShape> shapes;
  shapes.push_back({.batch = 8, .seq_len = 1024, .num_heads = 12, .num_kv_heads = 12, .head_dim = 64});
  for (const int64_t seq_len : {2048, 4096}) {
    shapes.push_back({.batch = 8192 / seq_len, .seq_len = seq_len, .num_heads = 32, .num_kv_heads = 8, .head_dim = 64});
  }
  for (const int64_t seq_len : {1024, 2048, 4096}) {
    shapes.push_back(
        {.batch = 8192 / seq_len, .seq_len = seq_len, .num_heads = 16, .num_kv_heads = 8, .head_dim = 128});
  }
  return shapes;
}

// Row strides of the logits: contiguous, and the next multiples of 16 and of 128 bytes.
std::vector<int64_t> HeadStrides(const ModelSizes& gpt2) {
  return {gpt2.vocabulary, (gpt2.vocabulary + 7) / 8 * 8, (gpt2.vocabulary + 63) / 64 * 64};
}

absl::Status MeasureAll(KernelRunner& runner, const DeviceKernels& kernels, DType dtype) {
  const bool tiny = absl::GetFlag(FLAGS_tiny);
  const ModelSizes &gpt2 = tiny ? kTinyGpt2 : kGpt2, &llama = tiny ? kTinyLlama : kLlama;
  for (const int64_t row_stride : HeadStrides(gpt2)) {
    FSDP_RETURN_IF_ERROR(MeasureHead(runner, kernels, gpt2, row_stride, dtype));
  }
  for (const AttentionShape& shape : AttentionShapes(tiny)) {
    FSDP_RETURN_IF_ERROR(MeasureAttention(runner, kernels, shape, dtype));
  }
  for (const ModelSizes& sizes : {gpt2, llama}) {
    FSDP_RETURN_IF_ERROR(MeasureProducts(runner, kernels, sizes, dtype));
    FSDP_RETURN_IF_ERROR(MeasureElementwise(runner, kernels, sizes, dtype));
    FSDP_RETURN_IF_ERROR(MeasureNorms(runner, kernels, sizes, dtype));
    FSDP_RETURN_IF_ERROR(MeasureCrossEntropy(runner, kernels, sizes, dtype));
    FSDP_RETURN_IF_ERROR(MeasureEmbedding(runner, kernels, sizes, dtype));
  }
  FSDP_RETURN_IF_ERROR(MeasureFlatBuffers(runner, kernels, tiny ? kTinyFlatNumel : kFlatNumel, dtype));
  return MeasureHead(runner, kernels, llama, llama.vocabulary, dtype);
}

absl::StatusOr<std::vector<DType>> ParseDTypes(const std::string& text) {
  std::vector<DType> dtypes;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (name != "bfloat16" && name != "float32") {
      return absl::InvalidArgumentError(absl::StrCat("--dtypes: \"", name, "\", expected bfloat16 or float32"));
    }
    dtypes.push_back(name == "bfloat16" ? DType::kBFloat16 : DType::kFloat32);
  }
  return dtypes;
}

KernelRunnerOptions Options() {
  KernelRunnerOptions options = {.filter = absl::GetFlag(FLAGS_filter),
                                 .seconds = absl::GetFlag(FLAGS_seconds),
                                 .rounds = absl::GetFlag(FLAGS_rounds)};
  if (absl::GetFlag(FLAGS_tiny)) {
    options.burst_seconds = 0;
    options.cold_bytes = 4096;
    options.graph_launches = 2;
  }
  return options;
}

absl::Status Main(const std::vector<DType>& dtypes) {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, CreateCudaDevice(0));
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const LayerOps> layers, LayerOpsFor(*device));
  FSDP_ASSIGN_OR_RETURN(const UpdateOps* const updates, UpdateOpsFor(*device));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<KernelRunner> runner, KernelRunner::Create(device, Options()));
  for (const DType dtype : dtypes) {
    FSDP_RETURN_IF_ERROR(MeasureAll(*runner, {layers.get(), updates}, dtype));
  }
  absl::PrintF("{\"measured\": %d, \"no_time_for\": %d}\n", runner->measured(), runner->skipped());
  return absl::OkStatus();
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (const std::optional<int> status = fsdp::ParseFlags(argc, argv, "cuda_kernels_benchmark [flags]")) return *status;
  if (absl::GetFlag(FLAGS_rounds) < 1) {
    return fsdp::ReportUsageError("cuda_kernels_benchmark",
                                  absl::InvalidArgumentError("--rounds: expected at least 1"));
  }
  const absl::StatusOr<std::vector<fsdp::DType>> dtypes = fsdp::ParseDTypes(absl::GetFlag(FLAGS_dtypes));
  if (!dtypes.ok()) return fsdp::ReportUsageError("cuda_kernels_benchmark", dtypes.status());
  const absl::Status status = fsdp::Main(*dtypes);
  if (status.ok()) return fsdp::kExitDone;
  std::fprintf(stderr, "cuda_kernels_benchmark: %s\n", std::string(status.message()).c_str());
  return fsdp::kExitFailed;
}
