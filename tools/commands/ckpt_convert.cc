// SPDX-License-Identifier: Apache-2.0
//
// Flags in, ConvertOptions out. Only this file knows flags: the library takes a target with the options of one format,
// so a flag that does not apply to the chosen format is refused here, with exit status 2, before anything is opened.
// Errors of the library call an option "ConvertOptions::max_memory"; ReportFailure turns that into "--max_memory".
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/recipe/recipe.h"
#include "fsdp/checkpoint/recipe/recipe_source.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tensor/float_dtype.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/interruption.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "fsdp/tools/commands/conversion.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// True if a flag is on the command line, with any value: "--world_size=0" does not apply to a format without ranks,
// although 0 is the default.
bool IsGiven(const CommandLine& line, const char* name) {
  return std::any_of(line.flags.begin(), line.flags.end(), [&](const auto& flag) { return flag.first == name; });
}

// The flags that are options of only some formats; empty: not given.
struct FormatFlags {
  std::optional<StateDictType> state_dict_type;
  std::optional<int> world_size;
  std::optional<int64_t> max_shard_size;
  std::optional<int> parity;
  std::optional<std::string> template_path;
  std::optional<std::string> outtype;
};

absl::Status Refused(const std::string& message) { return absl::InvalidArgumentError(message); }

// The world size of a format that has ranks; nullopt, also for the flag's default 0, is the source's.
absl::StatusOr<std::optional<int>> WorldSizeOf(const FormatFlags& flags) {
  const int world_size = flags.world_size.value_or(0);
  if (world_size == 0) return std::optional<int>();
  if (world_size >= 1 && world_size <= 99999) return flags.world_size;
  return Refused(absl::StrCat("--world_size=", world_size, ", expected 1 to 99999, or 0 for the source's"));
}

// SetOptions fills the options of a target from the flags; there is one for each alternative of FormatTarget.
// kInvalidArgument names a flag that does not apply to the format.

absl::Status SetOptions(const FormatFlags& flags, const std::string& destination, Hdf5Target& target) {
  const bool is_full = flags.state_dict_type.value_or(StateDictType::kFull) == StateDictType::kFull;
  if (!is_full && CheckpointDriver().HasSuffix(destination)) {
    return Refused(absl::StrCat("--state_dict_type=", std::string(StateDictTypeName(*flags.state_dict_type)),
                                " is for directories, and ", destination, " is one file"));
  }
  if (flags.world_size && is_full) {
    return Refused(
        "--world_size is for --state_dict_type=sharded or local, and a full checkpoint, the default, has no rank "
        "files: add one of the two, or leave --world_size out");
  }
  FSDP_ASSIGN_OR_RETURN(const std::optional<int> world_size, WorldSizeOf(flags));
  const int parity = flags.parity.value_or(0);
  if (parity < 0 || (parity > 0 && is_full)) {
    return Refused(absl::StrCat("--parity=", parity,
                                ", expected at least 0; it is for --state_dict_type=sharded or local,",
                                " since a full checkpoint has no rank files"));
  }
  if (flags.max_shard_size) {
    return Refused("--max_shard_size is for a directory of safetensors files, not for --to=hdf5");
  }
  target = {.type = flags.state_dict_type.value_or(target.type), .world_size = world_size, .parity = parity};
  return absl::OkStatus();
}

absl::Status RefuseParity(const FormatFlags& flags, const std::string& name) {
  if (!flags.parity) return absl::OkStatus();
  return Refused(
      absl::StrCat("--parity is for --to=hdf5 --state_dict_type=sharded or local; ", name, " has no rank files"));
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& destination, SafetensorsTarget& target) {
  if (flags.world_size) {
    return Refused("--world_size is for --state_dict_type=sharded; safetensors files belong to no rank");
  }
  FSDP_RETURN_IF_ERROR(RefuseParity(flags, "safetensors"));
  if (flags.state_dict_type.value_or(StateDictType::kFull) != StateDictType::kFull) {
    return Refused(absl::StrCat("--state_dict_type=", std::string(StateDictTypeName(*flags.state_dict_type)),
                                " is for --to=hdf5; safetensors files hold whole tensors"));
  }
  if (!flags.max_shard_size) return absl::OkStatus();
  if (SafetensorsDriver().HasSuffix(destination)) {
    return Refused(absl::StrCat("--max_shard_size is for directories, and ", destination, " is one file"));
  }
  if (*flags.max_shard_size < 1) return Refused("--max_shard_size=0, expected at least 1 byte");
  target.max_shard_size = *flags.max_shard_size;
  return absl::OkStatus();
}

// Refuses the flags that are only for hdf5 and safetensors, for the format `name`.
absl::Status RefuseOtherFormats(const FormatFlags& flags, const std::string& name) {
  FSDP_RETURN_IF_ERROR(RefuseParity(flags, name));
  if (flags.max_shard_size) {
    return Refused(absl::StrCat("--max_shard_size is for a directory of safetensors files, not for --to=", name));
  }
  if (flags.state_dict_type) {
    return Refused(absl::StrCat("--state_dict_type is for --to=hdf5, not for --to=", name));
  }
  return absl::OkStatus();
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& /*destination*/, TorchTarget&) {
  FSDP_RETURN_IF_ERROR(RefuseOtherFormats(flags, "torch"));
  if (!flags.world_size) return absl::OkStatus();
  return Refused("--world_size is for checkpoints of many files; a torch file is one");
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& /*destination*/, DcpTarget& target) {
  FSDP_RETURN_IF_ERROR(RefuseOtherFormats(flags, "dcp"));
  FSDP_ASSIGN_OR_RETURN(target.world_size, WorldSizeOf(flags));
  return absl::OkStatus();
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& /*destination*/, NpzTarget&) {
  FSDP_RETURN_IF_ERROR(RefuseOtherFormats(flags, "npz"));
  if (!flags.world_size) return absl::OkStatus();
  return Refused("--world_size is for checkpoints of many files; an .npz file is one");
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& /*destination*/, DeepSpeedTarget&) {
  FSDP_RETURN_IF_ERROR(RefuseOtherFormats(flags, "deepspeed"));
  if (!flags.world_size) return absl::OkStatus();
  return Refused("--world_size is not for --to=deepspeed, whose universal checkpoint any number of ranks reads");
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& /*destination*/, MegatronTarget&) {
  FSDP_RETURN_IF_ERROR(RefuseOtherFormats(flags, "megatron"));
  if (!flags.world_size) return absl::OkStatus();
  return Refused("--world_size is not for --to=megatron, which one rank writes: any number of ranks reads it");
}

absl::Status SetOptions(const FormatFlags& flags, const std::string& /*destination*/, GgufTarget& target) {
  FSDP_RETURN_IF_ERROR(RefuseOtherFormats(flags, "gguf"));
  if (flags.world_size) return Refused("--world_size is for checkpoints of many files; a GGUF file is one");
  target.template_path = flags.template_path.value_or("");
  if (!flags.outtype) return absl::OkStatus();
  const absl::Status is_type = CheckGgufType(*flags.outtype);
  if (!is_type.ok()) return Refused(absl::StrCat("--outtype=", is_type.message()));
  target.type = *flags.outtype;
  return absl::OkStatus();
}

// Refuses a destination with the suffix of a format that is not written here, which would become a directory of ours.
absl::Status CheckImpliesAFormat(const std::string& destination) {
  static constexpr const char* kOthers[] = {".ggml", ".onnx", ".tflite", ".pb",   ".keras", ".msgpack",
                                            ".npy",  ".pkl",  ".ckpt",   ".zip",  ".tar",   ".gz",
                                            ".tgz",  ".zst",  ".pickle", ".json", ".txt",   ".html"};
  const std::string extension = std::filesystem::path(destination).extension().string();
  const bool is_other =
      destination == "-" || std::find(std::begin(kOthers), std::end(kOthers), extension) != std::end(kOthers);
  if (!is_other) return absl::OkStatus();
  return Refused(absl::StrCat(destination, " has the suffix of no format that is written here; expected --to=",
                              TargetNames(), ", or another name"));
}

// The format that --to names, or the destination's suffix, with its options. std::visit calls the SetOptions of that
// format, so a format without one does not compile.
absl::StatusOr<FormatTarget> TargetFromFlags(const CommandLine& line, const Conversion& conversion) {
  const std::string& destination = conversion.destination;
  FormatTarget target = DefaultTarget(destination);
  if (conversion.default_target && !CheckpointDriver().HasSuffix(destination) &&
      target.index() == FormatTarget(Hdf5Target()).index()) {
    target = *conversion.default_target;
  }
  if (IsGiven(line, "to")) {
    const std::string name = absl::GetFlag(FLAGS_to);
    const std::optional<FormatTarget> named = FindTarget(name);
    if (!named) return Refused(absl::StrCat("--to=", name, ", expected ", TargetNames()));
    target = *named;
  } else {
    FSDP_RETURN_IF_ERROR(CheckImpliesAFormat(destination));
  }
  // A suffix of another format is likely a mistake: refuse it before any work.
  // Not of HDF5: a file of a checkpoint that is read is a worse mistake, which the conversion finds.
  if (!CheckpointDriver().HasSuffix(destination)) FSDP_RETURN_IF_ERROR(CheckSuffix(destination, target));
  FormatFlags flags;
  if (IsGiven(line, "state_dict_type")) {
    FSDP_ASSIGN_OR_RETURN(flags.state_dict_type, ParseStateDictType(absl::GetFlag(FLAGS_state_dict_type)));
  }
  if (IsGiven(line, "world_size")) flags.world_size = absl::GetFlag(FLAGS_world_size);
  if (IsGiven(line, "max_shard_size")) flags.max_shard_size = absl::GetFlag(FLAGS_max_shard_size).bytes;
  if (IsGiven(line, "parity")) flags.parity = absl::GetFlag(FLAGS_parity);
  if (IsGiven(line, "template")) flags.template_path = absl::GetFlag(FLAGS_template);
  if (IsGiven(line, "outtype")) flags.outtype = absl::GetFlag(FLAGS_outtype);
  if ((flags.template_path || flags.outtype) && !std::holds_alternative<GgufTarget>(target)) {
    return Refused(absl::StrCat(flags.template_path ? "--template" : "--outtype", " is for --to=gguf, not for ",
                                DriverOf(target).name()));
  }
  FSDP_RETURN_IF_ERROR(std::visit([&](auto& options) { return SetOptions(flags, destination, options); }, target));
  return target;
}

// Splits FROM=TO at its only '=' that is not part of a lookahead, "(?=".
absl::StatusOr<std::pair<std::string, std::string>> ParseRename(const std::string& text) {
  size_t split = text.npos;
  for (size_t at = text.find('='); at != text.npos; at = text.find('=', at + 1)) {
    if (at >= 2 && text.compare(at - 2, 2, "(?") == 0) continue;
    if (split != text.npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rename=", text, " has more than one '='; write \\x3D for one that is part of a name"));
    }
    split = at;
  }
  if (split == text.npos || split == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--rename=", text, ", expected FROM=TO"));
  }
  return std::make_pair(text.substr(0, split), text.substr(split + 1));
}

absl::StatusOr<ConvertOptions> OptionsFromFlags(const CommandLine& line, const Conversion& conversion) {
  ConvertOptions options;
  FSDP_ASSIGN_OR_RETURN(options.target, TargetFromFlags(line, conversion));
  if (IsGiven(line, "dtype")) {
    const absl::StatusOr<DType> dtype = ParseFloatDType(absl::GetFlag(FLAGS_dtype));
    if (!dtype.ok()) return Refused(absl::StrCat("--dtype=", dtype.status().message()));
    options.dtype = *dtype;
    const auto* const gguf = std::get_if<GgufTarget>(&*options.target);
    if (gguf != nullptr && !gguf->template_path.empty()) {
      return Refused("--dtype does not apply with --template, whose types the file gets: --outtype replaces them");
    }
  }
  if (IsGiven(line, "step")) {
    options.step = absl::GetFlag(FLAGS_step);
    const FormatTraits& traits = DriverOf(*options.target).traits();
    if (!traits.is_ours) {
      return Refused(absl::StrCat("--step is for --to=hdf5; ", std::string(traits.name), " has no place for it"));
    }
    if (!options.step) return Refused("--step=, expected 0 or more");
    if (*options.step < 0) return Refused(absl::StrCat("--step=", *options.step, ", expected 0 or more"));
  }
  options.names.include = absl::GetFlag(FLAGS_include).values;
  options.names.exclude = absl::GetFlag(FLAGS_exclude).values;
  for (const std::string& rename : absl::GetFlag(FLAGS_rename).values) {
    FSDP_ASSIGN_OR_RETURN(options.names.rename.emplace_back(), ParseRename(rename));
  }
  // Only to find errors: the library makes the filter again, but an expression that does not parse is an error of
  // usage.
  FSDP_RETURN_IF_ERROR(NameFilter::Create(options.names).status());
  options.model_only = absl::GetFlag(FLAGS_model_only);
  options.force = absl::GetFlag(FLAGS_force);
  options.skip_links = absl::GetFlag(FLAGS_skip_links);
  options.keep_quantized = absl::GetFlag(FLAGS_keep_quantized);
  FSDP_ASSIGN_OR_RETURN(options.map, RolesFromFlags());
  options.allow_expanded = absl::GetFlag(FLAGS_allow_expanded);
  options.max_memory = absl::GetFlag(FLAGS_max_memory).bytes;
  if (options.max_memory < kMinConvertMemory) {
    return Refused(
        absl::StrCat("--max_memory=", options.max_memory, ", expected at least ", kMinConvertMemory >> 20, "MiB"));
  }
  return options;
}

std::string ToJson(const Conversion& conversion, const ConvertReport& report, absl::Duration elapsed) {
  nlohmann::ordered_json json = {{"source", conversion.source}};
  if (!conversion.adapter.empty()) json["adapter"] = conversion.adapter;
  json["destination"] = conversion.destination;
  json["tensors"] = report.tensors;
  json["bytes"] = report.bytes;
  json["seconds"] = absl::ToDoubleSeconds(elapsed);
  json["notes"] = nlohmann::ordered_json::array();
  for (const std::string& note : report.notes) json["notes"].push_back(WithFlagNames(note));
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Adds the template, and its other parts if it is one of several. The conversion reports a template that does not open.
void AddTemplate(const GgufTarget& target, InputPaths& inputs) {
  if (target.template_path.empty()) return;
  inputs.Add(target.template_path);
  const absl::StatusOr<std::unique_ptr<TensorSource>> source =
      OpenTensorSource(target.template_path, {.skip_links = true});
  if (source.ok()) AddSource(**source, inputs);
}

// Lets a conversion make another layout of the source's model.
absl::Status ApplyRecipeFlag(ConvertOptions& options) {
  const std::string path = absl::GetFlag(FLAGS_recipe);
  if (path.empty()) return absl::OkStatus();
  if (options.keep_quantized) {
    return absl::InvalidArgumentError("--recipe does not apply with --keep_quantized: it cannot rearrange blocks");
  }
  FSDP_ASSIGN_OR_RETURN(const Recipe recipe, ReadRecipe(path));
  options.model_only = true;
  options.also_read.Add(path);
  options.transform = [path, recipe](std::unique_ptr<TensorSource> source) {
    absl::StatusOr<std::unique_ptr<TensorSource>> made = ApplyRecipe(std::move(source), recipe);
    if (!made.ok()) made = Annotate(made.status(), absl::StrCat("recipe ", path));
    return made;
  };
  return absl::OkStatus();
}

// Reads the files that flags name, then converts: a bad file is not an error of the command line.
absl::StatusOr<ConvertReport> Convert(const Conversion& conversion, ConvertOptions options) {
  const std::string& destination = conversion.destination;
  if (conversion.prepare) FSDP_RETURN_IF_ERROR(conversion.prepare(options));
  FSDP_RETURN_IF_ERROR(ApplyRecipeFlag(options));
  FSDP_ASSIGN_OR_RETURN(options.flat_layout, ReadFlatLayout(absl::GetFlag(FLAGS_flat_layout)));
  // The destination must not replace the layout or the template either.
  options.also_read.Add(absl::GetFlag(FLAGS_flat_layout));
  if (const auto* const gguf = std::get_if<GgufTarget>(&*options.target)) AddTemplate(*gguf, options.also_read);
  if (IsS3Url(conversion.source)) {
    options.open = [&](const TensorSourceOptions& source) { return OpenPath(conversion.source, source); };
  }
  FSDP_ASSIGN_OR_RETURN(ConvertReport report, ConvertCheckpoint(conversion.source, destination, options));
  // Such a directory in a ROOT is a step only if its manifest says so, too.
  const std::optional<int64_t> named = ParseStepName(std::filesystem::path(destination).filename().string());
  if (DriverOf(*options.target).traits().is_ours && named && *named != report.step) {
    const std::string step = report.step < 0 ? "an unknown step" : absl::StrCat("step ", report.step);
    report.notes.push_back(absl::StrCat(destination, " is of ", step, ", so a directory of checkpoints will not ",
                                        "take it for a step: --step=", *named, " makes it one"));
  }
  return report;
}

}  // namespace

int RunConversion(const CommandLine& line, const Conversion& conversion) {
  const std::string program = absl::StrCat("ckpt ", conversion.command);
  const std::string& destination = conversion.destination;
  absl::StatusOr<ConvertOptions> options = OptionsFromFlags(line, conversion);
  if (!options.ok()) return ReportUsage(program, options.status());
  absl::StatusOr<ConvertReport> report;
  const absl::Time start = SteadyNow();
  Interruption interruption;
  options->file_system = &interruption.files();
  // The block ends the progress line before anything else is printed.
  {
    Progress progress(conversion.command);
    options->progress = progress.callback();
    options->tensor_progress = progress.tensor_callback();
    report = Convert(conversion, *options);
  }
  interruption.EndProgramIfInterrupted(program, destination, report.status());
  const bool json = absl::GetFlag(FLAGS_json);
  if (!report.ok()) {
    if (json) Print("%s", ProblemJson(report.status()));
    return ReportFailure(program, report.status());
  }
  if (json) {
    Print("%s", ToJson(conversion, *report, SteadyNow() - start));
    return kExitDone;
  }
  if (report->tensors == 0) {
    Print("%s: no tensors\n", destination);  // a note has what it holds
  } else {
    Print("%s: %s, %s\n", destination, Counted(report->tensors, "tensor"),
          FormatBytes(static_cast<double>(report->bytes)));
  }
  for (const std::string& note : report->notes) Print("note: %s\n", WithFlagNames(note));
  return kExitDone;
}

int RunConvert(const CommandLine& line) {
  return RunConversion(line, {.command = "convert", .source = line.operands[0], .destination = line.operands[1]});
}

}  // namespace fsdp
