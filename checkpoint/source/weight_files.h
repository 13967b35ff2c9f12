// SPDX-License-Identifier: Apache-2.0
//
// Files of a directory whose names say that they hold tensors. A directory has room for several checkpoints and for
// files that a trainer keeps next to a model: what a reader does not take is named.
#ifndef FSDP_CHECKPOINT_SOURCE_WEIGHT_FILES_H_
#define FSDP_CHECKPOINT_SOURCE_WEIGHT_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// True for .safetensors, .pt, .pth, .bin, .ckpt, .npz, .h5, .hdf5, .keras, .onnx, .msgpack and .gguf.
bool IsWeightFileName(std::string_view name);

// True for the names by which trainers keep what is no model: optimizer.pt, scheduler.bin, rng_state_0.pth, ...
bool IsTrainerFileName(std::string_view name);

// `files`, paths of which some may be outside of it, are read from `directory`: for TensorSource::left_out(), its other
// weight files, what a trainer keeps there in files and directories, sorted, with what to do. After the first ones,
// only their number. Empty if it cannot be listed.
std::vector<std::string> WeightsBeside(const std::string& directory, const std::vector<std::string>& files);

// WeightsBeside of the path that a reader was given, if it is a directory; none beside a file, which was asked for.
std::vector<std::string> WeightsBesideGiven(const std::string& path, const std::vector<std::string>& files);

// A reader was given the directory `given`, and reads `step`: the same directory, or one in it. WeightsBeside of `step`
// and the other weight files of `given`; directories of `given` are other steps.
std::vector<std::string> WeightsBesideStep(const std::string& given, const std::string& step,
                                           const std::vector<std::string>& files);

// PEFT's adapters: the changes of some tensors of a model, which they do not hold. IsAdapter: `directory` has PEFT's
// config and the file `weights`; IsAdapterFile: that file's name is one of PEFT's.
inline constexpr char kAdapterConfigName[] = "adapter_config.json";
absl::StatusOr<bool> IsAdapter(const std::string& directory, std::string_view weights);
bool IsAdapterFile(const std::string& path);

// "a, b, c, d and 3 more", for messages: at most four of `names`, printable.
std::string SomeOf(const std::vector<std::string>& names);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_WEIGHT_FILES_H_
