// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cuda_fp8.h: empty. NCCL's header includes it next to the toolkit's cuda_runtime.h; no kernel here uses
// float8. An editor with this folder and the toolkit's on its path must find this one first (compile_flags.txt).
#ifndef FSDP_CUDA_EMULATOR_INCLUDE_CUDA_FP8_H_
#define FSDP_CUDA_EMULATOR_INCLUDE_CUDA_FP8_H_

#endif  // FSDP_CUDA_EMULATOR_INCLUDE_CUDA_FP8_H_
