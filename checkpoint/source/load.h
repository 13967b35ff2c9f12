// SPDX-License-Identifier: Apache-2.0
//
// LoadFrom: fills a state dict from an open checkpoint of any format. LoadCheckpoint (checkpoint.h) and
// LoadNativeCheckpoint (native/checkpoint.h) call it after they have identified the format of a path.
#ifndef FSDP_CHECKPOINT_SOURCE_LOAD_H_
#define FSDP_CHECKPOINT_SOURCE_LOAD_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct LoadOptions {
  // Compare the digest of every block that is read. Costs little; turn it off for a checkpoint that was just verified.
  bool verify = true;

  // True: a tensor of `wanted` that the checkpoint lacks is an error. False: it is left unchanged and named in
  // `missing`. A parameter that never had a gradient has no optimizer state in a checkpoint whose optimizer has stepped
  // or, with param_groups, is of step 0: its state in `wanted` is left unchanged and named in either case.
  bool strict = true;
  std::vector<std::string>* missing = nullptr;  // may be null

  // The device that holds the memory of `wanted`; null: host memory. With a GPU, part of `wanted` may be in host
  // memory. Memory of another device is kInvalidArgument, by name.
  Device* device = nullptr;

  // Threads that read, each with several blocks in flight. Not set: 4; with a GPU, whose link is faster than 4 threads,
  // the number of cores of this machine, at most 16. Ranks that share the cores should divide them.
  std::optional<int> io_threads = {};

  // The parameters in FSDP1's flat parameters, for a torch file or a DCP directory with flat parameters, whose layout
  // the files do not record: the parameters of the model in the order of named_parameters() before it was wrapped.
  // ReadFlatLayout reads it from a file; a program that has built the model can make it from the model.
  std::optional<FlatLayout> flat_layout = {};

  // TensorSourceOptions::map. Other formats than torch files and DCP directories refuse it.
  std::vector<TensorRole> map = {};
};

// The options for opening the source of `wanted`: without its optimizer if `wanted` does not have one.
TensorSourceOptions SourceOptionsFor(const StateDict& wanted, const LoadOptions& options);

// OK when all memory of `wanted` is on the host or on LoadOptions::device; kInvalidArgument names a tensor.
absl::Status CheckLoadMemory(const StateDict& wanted, const LoadOptions& options);

// Renames the options in an error of opening a source to the members of LoadOptions.
absl::Status NameLoadOptions(const absl::Status& status);

// Fills `wanted` from `source`, which was opened at `path`, by the rules of LoadCheckpoint. Blocks until all is read.
absl::Status LoadFrom(const TensorSource& source, const std::string& path, StateDict& wanted,
                      const LoadOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_LOAD_H_
