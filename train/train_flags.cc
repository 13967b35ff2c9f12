// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/train_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(std::optional<int>, nproc, std::nullopt,
          "ranks to start on this host (default: its GPUs, else 2); if RANK and WORLD_SIZE are in the environment, "
          "join that job instead");
ABSL_FLAG(std::string, run_id, "",
          "name of the job, the same for all its ranks: ranks of jobs with other names never join it (default: the "
          "launcher's, torchrun's, Slurm's or MPI's, else user, directory and command line)");
ABSL_FLAG(absl::Duration, join_timeout, absl::Minutes(10),
          "how long a rank waits at the start for all others, before it ends with status 75; 1m is enough under a "
          "launcher that starts all ranks together, such as torchrun");
ABSL_FLAG(
    absl::Duration, grace, absl::Seconds(60),
    "how long the current step may take after SIGTERM (at least: three times the longest step so far); then the "
    "run ends without a save; a save is timed only by `launch --grace` (30 s) or a scheduler that sent the signal");
ABSL_FLAG(std::string, device, "auto", "auto (a GPU if there is one), cpu or cuda");
ABSL_FLAG(bool, share_gpu, false, "let ranks outnumber GPUs; NCCL then talks through sockets, which is slow");
ABSL_FLAG(
    std::string, backend, "auto",
    "transport of ranks: auto (nccl on GPUs, else shm on one host and net between hosts), shm, net (UCX), mpi (the "
    "MPI that this program was built with; its launcher starts the ranks) or nccl");
ABSL_FLAG(std::string, model, "gpt2", "gpt2 or llama");
ABSL_FLAG(std::optional<std::string>, config, std::nullopt,
          "a Hugging Face config.json, or a preset: gpt2-tiny (default), gpt2-124m, ..., llama-tiny (default with "
          "--model=llama), llama-3.2-1b, ...");
ABSL_FLAG(
    std::string, init_from, "",
    "weights to start from: a Hugging Face directory, a safetensors or torch file, a DCP directory, or a checkpoint of "
    "ours; its model only");
ABSL_FLAG(
    std::string, flat_layout, "",
    "JSON file with the contents of FSDP1's flat parameters in the files of --init_from and --resume: "
    "{\"parameters\": [{\"name\", \"shape\"}, ...], \"units\": [...]} (default: the parameters of --config, in order, "
    "in the units that follow from their names and sizes)");
ABSL_FLAG(
    fsdp::RepeatedFlag, map, {},
    "FROM=ROLE: the branch FROM of the torch file or DCP directory of --init_from or --resume=PATH (keys joined by "
    "dots, \".\" is all) is a model, optim or extra; FROM=model.PREFIX puts a prefix before its names; may be "
    "repeated");
ABSL_FLAG(std::string, data, "",
          "text files by pattern, as byte-level tokens (default: this repository's own sources)");
ABSL_FLAG(std::string, tokens, "", "raw little-endian tokens, uint16 or, in a .u32 file, uint32");

ABSL_FLAG(int64_t, steps, 100, "steps in total, those before a resume included");
ABSL_FLAG(int64_t, batch_size, 8, "rows per rank and micro-step");
ABSL_FLAG(int64_t, seq_len, 64, "tokens per row");
ABSL_FLAG(int, grad_accum, 1, "micro-steps per step");
ABSL_FLAG(int64_t, global_batch, 0,
          "rows per step over all ranks: grad_accum follows from it and the number of ranks, so that a run which "
          "continues on another number trains the same steps (0: from batch_size and grad_accum)");
ABSL_FLAG(double, lr, 1e-3, "learning rate, the highest");
ABSL_FLAG(std::optional<double>, min_lr, std::nullopt,
          "learning rate at the end of the decay (default: 0; without --lr_schedule lr, which is constant)");
ABSL_FLAG(int64_t, warmup_steps, 0, "steps of linear warm-up");
ABSL_FLAG(std::string, lr_schedule, "auto",
          "of the learning rate after the warm-up: constant; cosine or linear, which decay to min_lr; wsd, constant, "
          "then a line to min_lr at the end of the run; auto, cosine with --min_lr, else constant");
ABSL_FLAG(int64_t, lr_decay_steps, 0,
          "steps of the decay of --lr_schedule (0: from the warm-up to the end of the run; with wsd, its last tenth)");
ABSL_FLAG(std::string, optimizer, "adamw",
          "adamw, adam (weight_decay is then a part of the gradient), sgd, lion, adafactor, or muon, which trains the "
          "matrices of blocks, and adamw the rest; all but adamw and sgd need parameters on hosts");
ABSL_FLAG(bool, amsgrad, false,
          "AdamW's and Adam's, for parameters on hosts: divide by the largest second moment so far");
ABSL_FLAG(std::optional<double>, momentum, std::nullopt, "of sgd (default: 0) and muon (default: 0.95)");
ABSL_FLAG(double, weight_decay, 0.1, "of parameters with two or more dimensions");
ABSL_FLAG(double, beta1, 0.9, "AdamW's, Adam's and Lion's");
ABSL_FLAG(double, beta2, 0.95, "AdamW's, Adam's and Lion's");
ABSL_FLAG(double, eps, 1e-8, "AdamW's and Adam's");
ABSL_FLAG(std::string, freeze, "",
          "parameters that stay as they are: a regular expression that matches anywhere in their names; units that mix "
          "them with others need --use_orig_params or --api=fsdp2");
ABSL_FLAG(double, max_grad_norm, 1.0, "gradients are scaled down to this norm (0: never)");
ABSL_FLAG(uint64_t, seed, 0, "of the initial weights");

ABSL_FLAG(std::string, sharding_strategy, "full_shard",
          "full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2");
ABSL_FLAG(int, shard_group_size, 0,
          "ranks per shard group of the hybrid strategies; the groups replicate; 0: the ranks of each host");
ABSL_FLAG(std::string, wrap, "block", "units: block (each transformer block), size:N (at least N parameters) or none");
ABSL_FLAG(std::string, api, "fsdp1",
          "fsdp1, or fsdp2: fully_shard; full_shard then keeps the root unsharded after forward and shard_grad_op is "
          "reshard_after_forward=False");
ABSL_FLAG(bool, use_orig_params, false, "FSDP1's aligned flat layout");
ABSL_FLAG(std::string, dtype, "float32",
          "of the parameters and of the optimizer's state: float32, or, for parameters on hosts, bfloat16 or float16, "
          "whose losses are scaled");
ABSL_FLAG(bool, bf16_stochastic_round, false,
          "with --dtype=bfloat16, round parameters and optimizer state up or down at random (by --seed), so that small "
          "steps are not lost");
ABSL_FLAG(std::optional<std::string>, param_dtype, std::nullopt,
          "of unsharded parameters and of compute: float32, bfloat16, or float16 on hosts, whose losses are scaled "
          "(default: dtype)");
ABSL_FLAG(std::string, reduce_dtype, "float32", "of the gradient reduction: float32, bfloat16 or float16");
ABSL_FLAG(std::string, buffer_dtype, "float32", "of floating-point buffers: float32, bfloat16 or float16");
ABSL_FLAG(std::optional<std::string>, output_dtype, std::nullopt,
          "with --api=fsdp2, of the logits: float32, bfloat16 or float16 (default: param_dtype)");
ABSL_FLAG(
    std::string, attention, "auto",
    "how attention rounds in bfloat16 and float16: eager, as Hugging Face's models do op by op; online, as kernels "
    "that visit each score once; own, online without cuDNN; auto, online on GPUs and eager on hosts, or in float32, "
    "which is not rounded");
ABSL_FLAG(int64_t, loss_chunks, 0,
          "compute the head and the loss in so many chunks of rows, so that the logits of only one chunk exist; the "
          "results differ by rounding (0: all logits exist)");
ABSL_FLAG(
    std::string, grad_scaler, "auto",
    "scale the loss so that small gradients survive float16, and leave out steps whose gradients overflow: on, off "
    "or auto (with float16 as --dtype, --param_dtype or --reduce_dtype)");
ABSL_FLAG(std::optional<double>, init_scale, std::nullopt, "of --grad_scaler, the first scale (default: 65536)");
ABSL_FLAG(std::optional<int>, growth_interval, std::nullopt,
          "of --grad_scaler, steps without overflow before the scale is doubled (default: 2000)");
ABSL_FLAG(bool, keep_low_precision_grads, false, "give the optimizer gradients in param_dtype");
ABSL_FLAG(bool, cpu_offload, false, "keep shards, gradients and optimizer state in host memory");
ABSL_FLAG(bool, pin_memory, false,
          "with --cpu_offload, pin that memory, so that copies overlap with compute; fsdp1 always does");
ABSL_FLAG(bool, activation_checkpointing, false,
          "keep only the input of each unit for backward, which runs its forward again");
ABSL_FLAG(std::string, backward_prefetch, "pre", "pre, post or none");
ABSL_FLAG(bool, forward_prefetch, false, "all-gather the next unit before the current one's forward");
ABSL_FLAG(bool, limit_all_gathers, true, "keep no more unsharded units than the schedule needs");
ABSL_FLAG(bool, symm_mem_for_comm, false,
          "on GPUs that reach each other's memory, let NCCL (2.27 or later) use symmetric memory for all-gathers and "
          "reduce-scatters");
ABSL_FLAG(bool, copy_engine_all_gather, false,
          "with --symm_mem_for_comm, all-gathers by copy engines, which leave the multiprocessors to the model (NCCL "
          "2.28 and CUDA 12.5, or later)");
ABSL_FLAG(bool, optimizer_casts, true,
          "on GPUs, let the optimizer also write the bfloat16 parameters that all-gathers start from");

ABSL_FLAG(bool, cuda_graph, false,
          "on GPUs, capture a training step after two and replay it from then on, with the same results; without "
          "--cpu_offload and --trace");

ABSL_FLAG(std::string, checkpoint_dir, "", "directory for step-K directories; made if needed");
ABSL_FLAG(int64_t, checkpoint_every, 0, "save after every N steps, and after the last (0: after the last only)");
ABSL_FLAG(int, keep_last, 0, "delete all but the newest K checkpoints after each save (0: keep all)");
ABSL_FLAG(int64_t, keep_every, 0, "with --keep_last, keep the checkpoints of steps that N divides too (0: none)");
ABSL_FLAG(std::string, state_dict_type, "sharded", "full, sharded or local");
ABSL_FLAG(bool, rank0_only, false, "with full: only rank 0 writes, and gets the state unit by unit");
ABSL_FLAG(bool, offload_to_cpu, false, "state dicts in host memory");
ABSL_FLAG(bool, async_checkpoint, false, "train on while a checkpoint is written; memory for a copy of the state");
ABSL_FLAG(bool, incremental, false, "link what a checkpoint has in common with the one before, such as frozen layers");
ABSL_FLAG(int, parity, 0, "K extra files from which any K lost rank files can be rebuilt (ckpt repair)");
ABSL_FLAG(
    std::string, resume, "auto",
    "auto (the newest checkpoint that verifies), none, or the path of a checkpoint: ours, a torch file or directory, "
    "a DCP directory");
ABSL_FLAG(
    std::string, allow, "",
    "attributes that may differ from --resume's or --init_from's, separated by commas: names as the log and "
    "ckpt inspect --diff_options print them (model.n_head, data.digest, options.lr), or all of model, data or options; "
    "a model that differs in a name that is not here is refused, other differences are listed");
ABSL_FLAG(bool, overwrite, false, "let this run replace the checkpoints that checkpoint_dir and --upload hold");
ABSL_FLAG(std::string, upload, "",
          "s3://BUCKET/PREFIX: also copy each checkpoint to this object store, while training runs; --resume=auto "
          "searches it too (keys and endpoint: AWS_* and ~/.aws)");

ABSL_FLAG(std::string, metrics, "",
          "a file of JSON lines, one a step, made with the directories above it; appended to on a resume");
ABSL_FLAG(
    std::string, tensorboard, "",
    "a directory, made if needed, for a file of events that TensorBoard shows: loss, gradient norm, learning rate, "
    "tokens per second, peak memory, the share of communication that is hidden (not with --cuda_graph), saves and "
    "restarts");
ABSL_FLAG(std::string, export, "", "after the last step, a Hugging Face directory: config.json and model.safetensors");
ABSL_FLAG(
    std::string, export_format, "safetensors",
    "what --export writes in addition to config.json: safetensors; torch, pytorch_model.bin; dcp, the files of a DCP "
    "directory");
ABSL_FLAG(std::string, trace, "",
          "Chrome trace JSON of the run (opens in Perfetto): each rank's streams, units, collectives");
ABSL_FLAG(bool, print_schedule, false,
          "print the schedule of one step for rank 0, and exit without training; needs no data");
