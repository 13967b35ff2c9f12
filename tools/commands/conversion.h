// SPDX-License-Identifier: Apache-2.0
//
// RunConversion: the body of the subcommands that write a checkpoint from the values of another: ckpt convert, and ckpt
// merge, whose source is computed. The flags are convert's.
#ifndef FSDP_TOOLS_COMMANDS_CONVERSION_H_
#define FSDP_TOOLS_COMMANDS_CONVERSION_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "fsdp/base/command_line.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/formats/formats.h"

namespace fsdp {

struct Conversion {
  std::string command;  // "convert", for messages
  std::string source;
  std::string destination;
  std::string adapter = {};  // of merge

  // The format of a destination whose suffix says nothing; default: FormatTarget's first.
  std::optional<FormatTarget> default_target = {};

  // Sets options that are no flags, after the flags. May be empty. An error is the command's.
  std::function<absl::Status(ConvertOptions& options)> prepare = {};
};

// Converts, prints the report as text or with --json, and returns the exit status. `line` has the flags that were
// given.
int RunConversion(const CommandLine& line, const Conversion& conversion);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CONVERSION_H_
