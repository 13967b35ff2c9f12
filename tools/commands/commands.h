// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of ckpt, one function in one source each. Each runs with the flags that are set
// (tools/cli/ckpt_flags.h) and with the operands of `line`, whose number ckpt.cc has checked; prints its result to
// stdout, as text or with --json as one object, and its errors to stderr; and returns the exit status of
// base/command_line.h.
//
// ROOT below is a directory of step-* checkpoints. Subcommands that use values take its newest step that verifies;
// verify takes the newest step, since that may be the damaged one that the user asks about, and inspect the newest of
// which the metadata are whole.
#ifndef FSDP_TOOLS_COMMANDS_COMMANDS_H_
#define FSDP_TOOLS_COMMANDS_COMMANDS_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// ckpt inspect PATH: what a checkpoint is and which file holds what, from its metadata only. ckpt inspect
// --diff_options A B: how the runs differ that made the two; kExitDone when they do not, kExitFailed when they do or
// are not recorded.
int RunInspect(const CommandLine& line);

// ckpt verify PATH: reads every byte and reports what is damaged. A ROOT means its newest committed step, damaged or
// not.
int RunVerify(const CommandLine& line);

// ckpt convert SRC DST: another format, kind, world size, dtype or names. `line` has the flags that were given, since a
// flag that does not apply to DST's format is an error even with its default value.
int RunConvert(const CommandLine& line);

// ckpt merge BASE ADAPTER OUT: a base model with the changes of a PEFT adapter, as convert would write the base.
int RunMerge(const CommandLine& line);

// ckpt view SRC OUT.h5: a foreign checkpoint as an HDF5 file that refers to the bytes in place.
int RunView(const CommandLine& line);

// ckpt diff A B: the differences between two checkpoints, in structure and in values. kExitDone when the two are equal,
// kExitFailed when they differ or one cannot be read.
int RunDiff(const CommandLine& line);

// ckpt prune DIR: deletes old steps of a ROOT, and the hidden directories left by crashes.
int RunPrune(const CommandLine& line);

// ckpt repair PATH: makes lost or damaged files again from undamaged ones. kExitDone when the checkpoint is whole, or,
// with --dry_run, would be.
int RunRepair(const CommandLine& line);

// ckpt push SRC s3://BUCKET/PREFIX: verifies a checkpoint, or the newest step of a ROOT that verifies, and uploads it.
int RunPush(const CommandLine& line);

// ckpt pull s3://BUCKET/PREFIX DST: downloads a checkpoint, or the newest step of a run, and verifies it on the way.
int RunPull(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_COMMANDS_H_
