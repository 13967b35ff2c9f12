// SPDX-License-Identifier: Apache-2.0
//
// The flags of ckpt's subcommands. Which subcommand has which is in ckpt.cc; a flag given to another is an error.
// Defaults and help texts are in ckpt_flags.cc; the command line is parsed before a subcommand runs, and flags do not
// change afterwards.
#ifndef FSDP_TOOLS_CLI_CKPT_FLAGS_H_
#define FSDP_TOOLS_CLI_CKPT_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/flags/declare.h"
#include "fsdp/base/command_line.h"

ABSL_DECLARE_FLAG(bool, json);

// Every subcommand that opens checkpoints of other formats: inspect, verify, convert, view, diff.
ABSL_DECLARE_FLAG(std::string, flat_layout);
ABSL_DECLARE_FLAG(fsdp::RepeatedFlag, map);

// verify, convert, diff.
ABSL_DECLARE_FLAG(bool, skip_links);

// inspect; html is diff's too.
ABSL_DECLARE_FLAG(fsdp::SwitchOrTextFlag, tensors);
ABSL_DECLARE_FLAG(std::string, sort);
ABSL_DECLARE_FLAG(std::string, html);
ABSL_DECLARE_FLAG(bool, diff_options);

// diff.
// Tolerances: values are equal if |a - b| <= atol + rtol * |b|, as in torch.allclose.
ABSL_DECLARE_FLAG(double, atol);
ABSL_DECLARE_FLAG(double, rtol);
ABSL_DECLARE_FLAG(int, top);

// prune; dry_run is repair's too. keep_last counts steps, keep_every is a period in steps; 0 switches it off.
ABSL_DECLARE_FLAG(int, keep_last);
ABSL_DECLARE_FLAG(int64_t, keep_every);
ABSL_DECLARE_FLAG(bool, dry_run);

// view.
ABSL_DECLARE_FLAG(bool, relative);

// convert; model_only is diff's too.
ABSL_DECLARE_FLAG(std::string, to);
ABSL_DECLARE_FLAG(std::string, state_dict_type);
ABSL_DECLARE_FLAG(int, world_size);
ABSL_DECLARE_FLAG(std::string, dtype);
ABSL_DECLARE_FLAG(std::optional<int64_t>, step);

// convert: for a gguf file.
ABSL_DECLARE_FLAG(std::string, template);
ABSL_DECLARE_FLAG(std::string, outtype);

// convert: another layout of the model.
ABSL_DECLARE_FLAG(std::string, recipe);

// convert: from a gguf file.
ABSL_DECLARE_FLAG(bool, keep_quantized);

// convert: which tensors, and under which names. Regular expressions; each flag may be repeated.
ABSL_DECLARE_FLAG(fsdp::RepeatedFlag, include);
ABSL_DECLARE_FLAG(fsdp::RepeatedFlag, exclude);
ABSL_DECLARE_FLAG(fsdp::RepeatedFlag, rename);
ABSL_DECLARE_FLAG(bool, model_only);

// convert: sizes in bytes, with a unit such as 5GB; parity counts files. max_memory is inspect's too, for a run.
ABSL_DECLARE_FLAG(fsdp::ByteSizeFlag, max_shard_size);
ABSL_DECLARE_FLAG(int, parity);
ABSL_DECLARE_FLAG(fsdp::ByteSizeFlag, max_memory);
ABSL_DECLARE_FLAG(bool, force);  // view's, push's and pull's too
ABSL_DECLARE_FLAG(bool, allow_expanded);

// inspect, push, pull: for an object store.
ABSL_DECLARE_FLAG(std::string, endpoint_url);

#endif  // FSDP_TOOLS_CLI_CKPT_FLAGS_H_
