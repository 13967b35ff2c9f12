// SPDX-License-Identifier: Apache-2.0
//
// Flags of all subcommands are defined here, since absl has one registry per program; ckpt.cc lists the flags of each
// subcommand and refuses the others. `ckpt SUBCOMMAND --help` prints the help texts below.
#include "fsdp/tools/cli/ckpt_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(bool, json, false, "print one JSON object instead of text");
ABSL_FLAG(bool, skip_links, false,
          "leave out the targets of an HDF5 file's links, the texts and objects of an .npz file, and the objects of "
          "Python classes in a torch file or DCP directory; otherwise a file with such a value is refused");
ABSL_FLAG(
    fsdp::SwitchOrTextFlag, tensors, {},
    "list every tensor: dtype, shape, bytes and who holds it; or, with a regular expression, those whose names it "
    "matches, and their sum");

ABSL_FLAG(std::string, sort, "",
          "order of the list that --tensors makes: size, the largest first, or name, h.2 before h.10; by default the "
          "checkpoint's own");

ABSL_FLAG(
    std::string, html, "",
    "also make this file, one page of charts: of a checkpoint its sizes, files, values and moments, of a run what "
    "changed in each layer from step to step, of diff the layers that differ; reads every value");

ABSL_FLAG(bool, diff_options, false,
          "compare what A and B record of their runs, the model's config, the data and the options; exit 0 when all is "
          "equal, 1 when not or when one records nothing");

ABSL_FLAG(double, atol, 0, "values are equal when |a - b| <= atol + rtol * |b|");
ABSL_FLAG(double, rtol, 0, "as atol, relative to the value in B");
ABSL_FLAG(int, top, 10, "how many tensors are shown, the largest differences first, and names that only one side has");

ABSL_FLAG(int, keep_last, 0, "how many of the newest steps stay; must be given");
ABSL_FLAG(int64_t, keep_every, 0, "steps that this divides stay too; 0: none does");
ABSL_FLAG(bool, dry_run, false, "say what would be done, and change nothing");

ABSL_FLAG(bool, relative, false,
          "name SRC's files relative to OUT.h5, so that both may be moved together; HDF5 then wants "
          "HDF5_EXTFILE_PREFIX='${ORIGIN}' in the environment");

ABSL_FLAG(
    std::string, to, "",
    "format of DST, hdf5, safetensors, torch, dcp, npz, gguf, deepspeed or megatron; by default what DST's suffix "
    "says, else hdf5, and of merge a Hugging Face directory");
ABSL_FLAG(std::string, state_dict_type, "full",
          "kind of an hdf5 checkpoint: full, one file; sharded and local, a file for each rank");
ABSL_FLAG(int, world_size, 0, "ranks of a sharded or local checkpoint or a DCP directory; 0 takes the source's");
ABSL_FLAG(std::string, dtype, "",
          "dtype of the model's floating-point tensors, such as bfloat16 (bf16); by default the source's");
ABSL_FLAG(
    std::string, template, "",
    "a GGUF model whose keys (architecture, vocabulary) and list of tensors a gguf file gets: its names and shapes "
    "must be SRC's");
ABSL_FLAG(
    std::string, outtype, "",
    "type in a gguf file: F32, F16, BF16, Q8_0 or MXFP4, for all tensors but the template's F32, or, without one, "
    "for all of two dimensions or more");
ABSL_FLAG(
    std::string, recipe, "",
    "JSON file that makes the tensors of another layout of those of SRC's model: fused, split, stacked, transposed "
    "or renamed; docs/ckpt.md has its form");
ABSL_FLAG(bool, keep_quantized, false,
          "carry the quantized tensors of a GGUF model as their blocks, bytes of type uint8 with the types in the "
          "metadata, in place of converting them to float32; DST is gguf, safetensors or hdf5");
ABSL_FLAG(std::optional<int64_t>, step, {}, "step of the run that an hdf5 checkpoint records; by default the source's");
ABSL_FLAG(fsdp::RepeatedFlag, include, {},
          "regular expression: keep the parameters whose names it matches; may be repeated");
ABSL_FLAG(fsdp::RepeatedFlag, exclude, {},
          "regular expression: leave out the parameters whose names it matches; may be repeated");
ABSL_FLAG(
    fsdp::RepeatedFlag, rename, {},
    "FROM=TO, a regular expression and what replaces each match of it, $1 being its first group; may be repeated");
ABSL_FLAG(bool, model_only, false, "leave out optimizer and extra values");
ABSL_FLAG(fsdp::ByteSizeFlag, max_shard_size, {5'000'000'000}, "payload of one file of a safetensors directory");
ABSL_FLAG(int, parity, 0,
          "extra files from which any so many lost or damaged rank files can be made again (ckpt repair)");
ABSL_FLAG(fsdp::ByteSizeFlag, max_memory, {int64_t{512} << 20},
          "memory that the program may use, while it reads the values of a conversion or of a run");
ABSL_FLAG(bool, force, false, "replace DST if it exists; of an object store, another save of the step");
ABSL_FLAG(bool, allow_expanded, false,
          "write tensors that are larger in all than the bytes that SRC holds of them: expanded or overlapping views");
ABSL_FLAG(std::string, flat_layout, "",
          "JSON file with the contents of FSDP1's flat parameters: {\"parameters\": [{\"name\", \"shape\"}, "
          "...], \"units\": [...]}; needed if the checkpoint does not record it");
ABSL_FLAG(
    fsdp::RepeatedFlag, map, {},
    "FROM=ROLE: the branch FROM of a torch file or DCP directory (keys joined by dots, \".\" is all) is a model, optim "
    "or extra; FROM=model.PREFIX puts a prefix before its names; may be repeated");
ABSL_FLAG(std::string, endpoint_url, "",
          "http://HOST[:PORT] or https://HOST[:PORT] of the object store; by default AWS_ENDPOINT_URL_S3, "
          "AWS_ENDPOINT_URL or what ~/.aws says, else Amazon's");
