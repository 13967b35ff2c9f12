// SPDX-License-Identifier: Apache-2.0
//
// The flags of train_gpt, in the order of its help, which describes them. TrainOptionsFromFlags (train_options.h) makes
// options of them.
#ifndef FSDP_TRAIN_TRAIN_FLAGS_H_
#define FSDP_TRAIN_TRAIN_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/flags/declare.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"

ABSL_DECLARE_FLAG(std::optional<int>, nproc);
ABSL_DECLARE_FLAG(std::string, run_id);
ABSL_DECLARE_FLAG(absl::Duration, join_timeout);
ABSL_DECLARE_FLAG(absl::Duration, grace);
ABSL_DECLARE_FLAG(std::string, device);
ABSL_DECLARE_FLAG(bool, share_gpu);
ABSL_DECLARE_FLAG(std::string, backend);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::optional<std::string>, config);
ABSL_DECLARE_FLAG(std::string, init_from);
ABSL_DECLARE_FLAG(std::string, flat_layout);
ABSL_DECLARE_FLAG(fsdp::RepeatedFlag, map);
ABSL_DECLARE_FLAG(std::string, data);
ABSL_DECLARE_FLAG(std::string, tokens);
ABSL_DECLARE_FLAG(int64_t, steps);
ABSL_DECLARE_FLAG(int64_t, batch_size);
ABSL_DECLARE_FLAG(int64_t, seq_len);
ABSL_DECLARE_FLAG(int, grad_accum);
ABSL_DECLARE_FLAG(int64_t, global_batch);
ABSL_DECLARE_FLAG(double, lr);
ABSL_DECLARE_FLAG(std::optional<double>, min_lr);
ABSL_DECLARE_FLAG(int64_t, warmup_steps);
ABSL_DECLARE_FLAG(std::string, lr_schedule);
ABSL_DECLARE_FLAG(int64_t, lr_decay_steps);
ABSL_DECLARE_FLAG(std::string, optimizer);
ABSL_DECLARE_FLAG(bool, amsgrad);
ABSL_DECLARE_FLAG(std::optional<double>, momentum);
ABSL_DECLARE_FLAG(double, weight_decay);
ABSL_DECLARE_FLAG(double, beta1);
ABSL_DECLARE_FLAG(double, beta2);
ABSL_DECLARE_FLAG(double, eps);
ABSL_DECLARE_FLAG(std::string, freeze);
ABSL_DECLARE_FLAG(double, max_grad_norm);
ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(std::string, sharding_strategy);
ABSL_DECLARE_FLAG(int, shard_group_size);
ABSL_DECLARE_FLAG(std::string, wrap);
ABSL_DECLARE_FLAG(std::string, api);
ABSL_DECLARE_FLAG(bool, use_orig_params);
ABSL_DECLARE_FLAG(std::string, dtype);
ABSL_DECLARE_FLAG(bool, bf16_stochastic_round);
ABSL_DECLARE_FLAG(std::optional<std::string>, param_dtype);
ABSL_DECLARE_FLAG(std::string, reduce_dtype);
ABSL_DECLARE_FLAG(std::string, buffer_dtype);
ABSL_DECLARE_FLAG(std::optional<std::string>, output_dtype);
ABSL_DECLARE_FLAG(std::string, attention);
ABSL_DECLARE_FLAG(int64_t, loss_chunks);
ABSL_DECLARE_FLAG(std::string, grad_scaler);
ABSL_DECLARE_FLAG(std::optional<double>, init_scale);
ABSL_DECLARE_FLAG(std::optional<int>, growth_interval);
ABSL_DECLARE_FLAG(bool, keep_low_precision_grads);
ABSL_DECLARE_FLAG(bool, cpu_offload);
ABSL_DECLARE_FLAG(bool, pin_memory);
ABSL_DECLARE_FLAG(bool, activation_checkpointing);
ABSL_DECLARE_FLAG(std::string, backward_prefetch);
ABSL_DECLARE_FLAG(bool, forward_prefetch);
ABSL_DECLARE_FLAG(bool, limit_all_gathers);
ABSL_DECLARE_FLAG(bool, symm_mem_for_comm);
ABSL_DECLARE_FLAG(bool, copy_engine_all_gather);
ABSL_DECLARE_FLAG(bool, optimizer_casts);
ABSL_DECLARE_FLAG(bool, cuda_graph);
ABSL_DECLARE_FLAG(std::string, checkpoint_dir);
ABSL_DECLARE_FLAG(int64_t, checkpoint_every);
ABSL_DECLARE_FLAG(int, keep_last);
ABSL_DECLARE_FLAG(int64_t, keep_every);
ABSL_DECLARE_FLAG(std::string, state_dict_type);
ABSL_DECLARE_FLAG(bool, rank0_only);
ABSL_DECLARE_FLAG(bool, offload_to_cpu);
ABSL_DECLARE_FLAG(bool, async_checkpoint);
ABSL_DECLARE_FLAG(bool, incremental);
ABSL_DECLARE_FLAG(int, parity);
ABSL_DECLARE_FLAG(std::string, resume);
ABSL_DECLARE_FLAG(std::string, allow);
ABSL_DECLARE_FLAG(bool, overwrite);
ABSL_DECLARE_FLAG(std::string, upload);
ABSL_DECLARE_FLAG(std::string, metrics);
ABSL_DECLARE_FLAG(std::string, tensorboard);
ABSL_DECLARE_FLAG(std::string, export);
ABSL_DECLARE_FLAG(std::string, export_format);
ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(bool, print_schedule);

#endif  // FSDP_TRAIN_TRAIN_FLAGS_H_
