// SPDX-License-Identifier: Apache-2.0
//
// The table of checkpoint formats: how to recognise the format of a path, which formats can be written, and how to read
// and write them. To add a format: its folder with a driver, its target in FormatTarget if it can be written, and its
// line in formats.cc.
//
//   FSDP_ASSIGN_OR_RETURN(const auto source, OpenTensorSource("any/checkpoint"));
//   MakeWriter(SafetensorsTarget{.max_shard_size = 1 << 30})->Write(...)
#ifndef FSDP_CHECKPOINT_FORMATS_FORMATS_H_
#define FSDP_CHECKPOINT_FORMATS_FORMATS_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_driver.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_driver.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_driver.h"
#include "fsdp/checkpoint/foreign/npz/npz_driver.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_driver.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_driver.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_driver.h"
#include "fsdp/checkpoint/native/checkpoint_driver.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The format to write, with the options of only this format. Programs list the formats in this order.
using FormatTarget = std::variant<Hdf5Target, SafetensorsTarget, TorchTarget, DcpTarget, NpzTarget, GgufTarget,
                                  DeepSpeedTarget, MegatronTarget>;

struct Format {
  const FormatDriver* driver = nullptr;
  std::optional<FormatTarget> target = {};  // with default options; nullopt for a read-only format
};

// Every format, in the order of recognition.
const std::vector<Format>& Formats();

// The first format that recognises `path`, from names and first bytes. Errors as ProbePath; kInvalidArgument, with the
// signs that each format expects, when no format recognises it, or what it is instead and what to do (known_paths.h,
// lookalike_file.h).
absl::StatusOr<const FormatDriver*> FindFormat(const std::string& path);

// Opens the checkpoint at `path`: one of ours, a ROOT of them (its newest step that verifies), a safetensors file, a
// Hugging Face directory, a torch file, a DCP directory, ... Errors as FindFormat and FormatDriver::Open.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenTensorSource(const std::string& path,
                                                               const TensorSourceOptions& options = {});

// The writable format of that name, with default options; nullopt if there is no such format.
std::optional<FormatTarget> FindTarget(std::string_view name);

// "hdf5, safetensors, torch, dcp, npz, gguf, deepspeed or megatron": the names that FindTarget accepts.
std::string TargetNames();

// The format that the suffix of `destination` implies, with default options; without such a suffix a FULL checkpoint of
// ours.
FormatTarget DefaultTarget(const std::string& destination);

// kInvalidArgument if `destination` has the suffix of another format than `target`, since readers would take the file
// for that format.
absl::Status CheckSuffix(const std::string& destination, const FormatTarget& target);

const FormatDriver& DriverOf(const FormatTarget& target);
std::unique_ptr<FormatWriter> MakeWriter(const FormatTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_FORMATS_H_
