// SPDX-License-Identifier: Apache-2.0
//
// TiedHead: the output layer of a Hugging Face model that is its embedding. The weight files of such a model lack
// lm_head.weight, and only config.json says that the model has it: "tie_word_embeddings", or the class of the model.
// Give it the names of all tensors, then ask.
#ifndef FSDP_CHECKPOINT_SOURCE_TIED_HEAD_H_
#define FSDP_CHECKPOINT_SOURCE_TIED_HEAD_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

class TiedHead {
 public:
  // Reads config.json in `directory`. Nothing is tied if it is not there.
  static TiedHead Of(const std::string& directory);

  // A tensor of the model.
  void Add(std::string_view name);

  // {"lm_head.weight", the embedding's name}; empty strings if no tensor is tied, or if it may be one of several.
  std::pair<std::string, std::string> names() const;

  // Which tensor is tied and why, or why that is not known; empty if there is nothing to say.
  std::string note() const;

 private:
  std::string why_;      // the head is tied; empty: it is not
  std::string problem_;  // config.json cannot be read
  bool has_head_ = false;
  std::vector<std::string> embeddings_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_TIED_HEAD_H_
