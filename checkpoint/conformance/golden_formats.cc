// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/conformance/golden_formats.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace fsdp {

namespace fs = std::filesystem;

std::string NameOfGolden(const testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param.substr(sizeof("checkpoint/foreign/") - 1)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
  }
  return name;
}

std::vector<std::string> FilesOf(const std::string& path) {
  std::vector<std::string> files;
  if (!fs::is_directory(path)) return {path};
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> GoldenFormats() {
  return {
      "checkpoint/foreign/deepspeed/testdata/universal_z2_w2.json",
      "checkpoint/foreign/deepspeed/testdata/universal_z3_w2.json",
      "checkpoint/foreign/deepspeed/testdata/z0_w2_bf16.json",
      "checkpoint/foreign/deepspeed/testdata/z1_w2_bf16_optimizer.json",
      "checkpoint/foreign/deepspeed/testdata/z1_w2_fp32.json",
      "checkpoint/foreign/deepspeed/testdata/z1_w3_bf16.json",
      "checkpoint/foreign/deepspeed/testdata/z2_w2_aligned.json",
      "checkpoint/foreign/deepspeed/testdata/z2_w2_bf16.json",
      "checkpoint/foreign/deepspeed/testdata/z2_w3_fp32_frozen.json",
      "checkpoint/foreign/deepspeed/testdata/z2_w3_round_robin.json",
      "checkpoint/foreign/deepspeed/testdata/z3_w2_bf16.json",
      "checkpoint/foreign/deepspeed/testdata/z3_w2_subgroups.json",
      "checkpoint/foreign/deepspeed/testdata/z3_w3_fp32_frozen.json",
      "checkpoint/foreign/flax/testdata/dtypes.json",
      "checkpoint/foreign/flax/testdata/parts.json",
      "checkpoint/foreign/flax/testdata/train_state.json",
      "checkpoint/foreign/flax/testdata/whole.json",
      "checkpoint/foreign/gguf/testdata/all_types.json",
      "checkpoint/foreign/gguf/testdata/big_endian.json",
      "checkpoint/foreign/gguf/testdata/grids.json",
      "checkpoint/foreign/gguf/testdata/random_blocks.json",
      "checkpoint/foreign/gguf/testdata/split.json",
      "checkpoint/foreign/megatron/testdata/gpt_distrib_optim.json",
      "checkpoint/foreign/megatron/testdata/gpt_distrib_optim_dp_reshardable.json",
      "checkpoint/foreign/megatron/testdata/gpt_tp1_w1.json",
      "checkpoint/foreign/megatron/testdata/gpt_tp2_dp2.json",
      "checkpoint/foreign/megatron/testdata/gpt_tp2_pp2.json",
      "checkpoint/foreign/megatron/testdata/legacy_tp2.json",
      "checkpoint/foreign/megatron/testdata/legacy_tp2_pp2.json",
      "checkpoint/foreign/megatron/testdata/moe_ep2.json",
      "checkpoint/foreign/keras/testdata/functional_adamw_h5.json",
      "checkpoint/foreign/keras/testdata/functional_adamw_keras.json",
      "checkpoint/foreign/keras/testdata/functional_bfloat16_keras.json",
      "checkpoint/foreign/keras/testdata/sequential_conv_h5.json",
      "checkpoint/foreign/keras/testdata/sequential_conv_keras.json",
      "checkpoint/foreign/npz/testdata/bfloat16_void.json",
      "checkpoint/foreign/npz/testdata/stored.json",
      "checkpoint/foreign/npz/testdata/deflated.json",
      "checkpoint/foreign/npz/testdata/v2.json",
      "checkpoint/foreign/npz/testdata/v3.json",
      "checkpoint/foreign/onnx/testdata/external.json",
      "checkpoint/foreign/onnx/testdata/nested.json",
      "checkpoint/foreign/onnx/testdata/raw.json",
      "checkpoint/foreign/onnx/testdata/typed.json",
      "checkpoint/foreign/orbax/testdata/manager_step7.json",
      "checkpoint/foreign/orbax/testdata/pytree_ocdbt_chunks.json",
      "checkpoint/foreign/orbax/testdata/pytree_ocdbt_indirect_w2.json",
      "checkpoint/foreign/orbax/testdata/pytree_ocdbt_sharded_w4.json",
      "checkpoint/foreign/orbax/testdata/pytree_ocdbt_zarr3_w2.json",
      "checkpoint/foreign/orbax/testdata/pytree_zarr_files_w2.json",
      "checkpoint/foreign/orbax/testdata/standard_ocdbt.json",
      "checkpoint/foreign/orbax/testdata/tensorstore_ocdbt_tree.json",
      "checkpoint/foreign/safetensors/testdata/all_dtypes_f4_f8.json",
      "checkpoint/foreign/safetensors/testdata/mxfp4_like.json",
      "checkpoint/foreign/torch/testdata/float4.json",
      "checkpoint/foreign/torch/testdata/float4_dcp.json",
      "checkpoint/foreign/torch_checkpointing/testdata/fsdp2_tp_w4_strided.json",
      "checkpoint/foreign/torch_checkpointing/testdata/fsdp2_w2.json",
      "checkpoint/foreign/torch_checkpointing/testdata/fsdp2_w2_safetensors.json",
      "checkpoint/foreign/torch_checkpointing/testdata/fsdp2_w3_named_bf16.json",
      "checkpoint/foreign/torch_checkpointing/testdata/no_resharder_w2.json",
  };
}

}  // namespace fsdp
