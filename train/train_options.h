// SPDX-License-Identifier: Apache-2.0
//
// TrainOptions: the task of a run of train_gpt: only the values of its flags, checked. Options of the library
// (FsdpOptions, AdamWOptions) are held unchanged; a test fills them in without a command line.
#ifndef FSDP_TRAIN_TRAIN_OPTIONS_H_
#define FSDP_TRAIN_TRAIN_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/collectives/group/same_on_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/models/attention_kind.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/train/learning_rate.h"

namespace fsdp {

// Which device a rank trains on (rank_device.h).
enum class DeviceChoice {
  kAuto,  // a GPU if there is one
  kCpu,
  kCuda,
};

// The device of every rank of a run, before it is known which rank this process is.
struct RankDeviceOptions {
  DeviceChoice device = DeviceChoice::kAuto;

  // Ranks of this host may outnumber its GPUs; several ranks then share a GPU.
  bool share_gpu = false;
};

// The checkpoint that a run continues from (run_start.h).
struct ResumeChoice {
  enum class Kind {
    kAuto,  // the newest checkpoint of checkpoint_dir that verifies, or the beginning
    kNone,  // from the beginning
    kPath,  // from `path`, a checkpoint or a directory of them
  };

  Kind kind = Kind::kAuto;
  std::string path;
};

// FullyShardedDataParallel or FullyShard.
enum class TrainApi { kFsdp1, kFsdp2 };

// Which optimizers train the parameters (run_optimizers.h).
enum class OptimizerKind { kAdamW, kAdam, kSgd, kLion, kAdafactor, kMuon };

// By the name of the flag: "adamw".
std::string_view OptimizerKindName(OptimizerKind kind);

struct TrainOptions {
  // Ranks to start on this host, unless this process is part of a job; default: one for each GPU, or 2 without GPUs.
  std::optional<int> nproc;
  RankDeviceOptions device;

  // InitOptions::backend; empty: chosen by the device and the job.
  std::string backend;

  // The name of the job (collectives/job/job_identity.h); empty: from the environment.
  std::string run_id;

  // How long a rank waits at the start for all others.
  absl::Duration join_timeout = absl::Minutes(10);

  // How long the current step may take once SIGTERM has asked for a stop (stop_signal.h).
  absl::Duration grace = absl::Seconds(60);

  // The kind of the model, by Hugging Face's name: "gpt2" or "llama".
  std::string model = "gpt2";

  // The path of a config.json or of its directory, or a preset.
  std::string config;

  // The path of initial weights; empty: random ones, from fsdp.init_seed.
  std::string init_from;

  // A file that describes flat parameters; empty: the layout of the model itself.
  std::string flat_layout;

  // What branches of the files of init_from or resume.path are (LoadOptions::map).
  std::vector<TensorRole> map;

  // A regular expression of parameters that are not trained; empty: all are trained.
  std::string freeze;

  // The data: a pattern of text files, read as byte-level tokens, or a file of raw tokens (token_data.h). At most one
  // of the two; if both are empty, this repository's own sources.
  std::string data;
  std::string tokens;

  // The steps.
  int64_t batch_size = 0;             // rows per rank and micro-step
  int64_t seq_len = 0;                // tokens per row
  int grad_accum = 1;                 // micro-steps per step
  int64_t global_batch = 0;           // rows per step over all ranks, which determine grad_accum; 0: not given
  LearningRateOptions learning_rate;  // includes the number of steps
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  AdamWOptions adamw;        // lr is set each step; optimizers of other kinds take what they have of it
  double momentum = 0;       // of SGD and Muon
  double max_grad_norm = 0;  // 0: no clipping

  // max_grad_norm for ClipGradNorm, for which 0 is a limit and infinity means no clipping.
  float clip_limit() const {
    return max_grad_norm > 0 ? static_cast<float>(max_grad_norm) : std::numeric_limits<float>::infinity();
  }

  // The sharding. `fsdp` has the options of both interfaces by FSDP1's names; with kFsdp2 they are translated
  // (sharded_language_model.h), and the fields that FSDP2 lacks are refused when the flags are read. fsdp.init_seed
  // seeds the initial weights; fsdp.trace is set by the trainer. The flags wrap every block by default; FsdpOptions
  // does not.
  TrainApi api = TrainApi::kFsdp1;
  DType dtype = DType::kFloat32;       // of the parameters and of the optimizers' states
  bool bf16_stochastic_round = false;  // of both in bfloat16, by fsdp.init_seed
  FsdpOptions fsdp;
  std::string wrap = "none";                     // the source of fsdp.auto_wrap_policy, for the record
  std::optional<AttentionKind> attention;        // how attention rounds; default: by device and dtype (AttentionOn)
  bool own_attention = false;                    // by this project's kernels, even if cuDNN is installed
  int64_t loss_chunks = 0;                       // chunks of the head and the loss; 0: all logits exist
  std::optional<DType> output_dtype;             // of FSDP2's root; default: the dtype that it computed in
  std::optional<GradScalerOptions> grad_scaler;  // set: losses are scaled, as float16 needs
  bool pin_memory = false;                       // of fsdp.cpu_offload under FSDP2; FSDP1 always pins
  bool cuda_graph = false;                       // replay steps as graphs

  // Of unsharded parameters and of compute.
  DType compute_dtype() const { return fsdp.mixed_precision.param_dtype.value_or(dtype); }

  // `attention`, or the default for models on such a device: online on GPUs in 16 bits, else eager.
  AttentionKind AttentionOn(DeviceType device) const;

  // Checkpoints.
  std::string checkpoint_dir;    // empty: none are saved
  int64_t checkpoint_every = 0;  // steps; 0: only after the last
  int keep_last = 0;             // 0: all are kept
  int64_t keep_every = 0;        // 0: no step is kept for good
  StateDictType state_dict_type = StateDictType::kSharded;
  bool rank0_only = false;        // for kFull: only rank 0 writes, and receives the state unit by unit
  bool offload_to_cpu = false;    // gather state dicts in host memory
  bool async_checkpoint = false;  // train on while a checkpoint is written; costs memory for a copy of the state
  bool incremental = false;       // link rank files with tensors that have not changed since the last checkpoint
  int parity = 0;                 // extra files, from which as many lost rank files can be made again
  ResumeChoice resume;
  std::set<std::string> allow;  // attributes that may differ from the checkpoint's (run_attributes.h)
  bool overwrite = false;       // replace committed steps beyond the start of this run
  std::string upload;           // "s3://bucket/run", to which each checkpoint is copied; empty: no uploads

  // Other outputs.
  std::string metrics;                        // a file of JSON lines; empty: none
  std::string tensorboard;                    // a directory of event files; empty: none
  std::string export_to;                      // a Hugging Face directory; empty: none
  std::string export_format = "safetensors";  // or "torch", "dcp"
  std::string trace;                          // a Chrome trace; empty: none
  bool print_schedule = false;                // print the schedule of one step instead of training

  // The flags that must be the same on every rank (agreed_flags.h); empty if the options are not from a command line.
  std::vector<RankFact> agreed_flags;
};

// The current flags of train_gpt; call it after the command line was parsed. Every flag that exists does something.
// kInvalidArgument names the flag, its value and what was expected; the program then exits with status 2.
absl::StatusOr<TrainOptions> TrainOptionsFromFlags();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_OPTIONS_H_
