// SPDX-License-Identifier: Apache-2.0
//
// OpenSafetensorsSource: a safetensors file, or a Hugging Face directory of them, as a TensorSource. The format holds
// only a model: every key is a model key, and the step is only in a trainer_state.json next to it (step_counter.h). It
// also has no digests, so only its structure is checked.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// True when `directory` holds model.safetensors, model.safetensors.index.json, one index of another name that ends so,
// an adapter of PEFT (adapter_config.json and adapter_model.safetensors), or the parts of safetensors_shards.h.
absl::StatusOr<bool> IsHuggingFaceDirectory(const std::string& directory);

// Opens a file, or a directory: the first of these that it has. Reads and checks all headers. kNotFound when
// none of these exists; kDataLoss names the file, the tensor and the broken rule. In a directory this includes a tensor
// that is missing in the file that the index names, one that is missing in the index, and one that is in two files.
// kInvalidArgument for a file by HuggingFaceStorageWriter that may be a rank's part.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsSource(const std::string& path);

// True for a directory that is opened as parts: its tensors are in several files each.
absl::StatusOr<bool> IsOfShards(const std::string& path);

// The files that OpenSafetensorsSource would read unless IsOfShards(path), sorted by name, each checked, also against
// the index if there is one: for finding out which file holds which tensor.
absl::StatusOr<std::vector<std::unique_ptr<SafetensorsFile>>> OpenSafetensorsFiles(const std::string& path);

// What `files`, of `path`, tell besides their tensors.
struct SafetensorsFacts {
  int64_t step = -1;                           // of a trainer_state.json next to them
  std::map<std::string, std::string> aliases;  // other names of tensors: safetensors.torch.save_model has them in
                                               // __metadata__, as {other name: name}
  std::vector<std::string> notes;              // SourceLayout::notes
  std::pair<std::string, std::string> tied;    // TiedHead::names()
};
SafetensorsFacts FactsOf(const std::string& path, const std::vector<std::unique_ptr<SafetensorsFile>>& files);

// TensorSource::left_out() of `path`, from which `files` are read: the other weight files of a directory.
std::vector<std::string> SafetensorsBeside(const std::string& path,
                                           const std::vector<std::unique_ptr<SafetensorsFile>>& files);

// The traits of every source that this opens, and of its driver.
const FormatTraits& SafetensorsTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SOURCE_H_
