// SPDX-License-Identifier: Apache-2.0
//
// PrintedTensors: the order of a list of tensors that is written piece by piece.
#ifndef FSDP_TOOLS_INSPECT_PRINTED_TENSORS_H_
#define FSDP_TOOLS_INSPECT_PRINTED_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/tools/inspect/ckpt_summary.h"

namespace fsdp {

// Passes on what is written about each tensor: immediately, or, in another order than the checkpoint's, at the end.
class PrintedTensors final {
 public:
  // `sink` must outlive the list.
  PrintedTensors(TensorOrder order, const TextSink& sink) : order_(order), sink_(sink) {}

  void Add(const StoredTensor& tensor, std::string text);
  void End();

 private:
  struct Item {
    StateKey::Section section;
    std::string name;
    int64_t bytes;
    std::string text;
  };

  const TensorOrder order_;
  const TextSink& sink_;
  std::vector<Item> items_;
};

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_PRINTED_TENSORS_H_
