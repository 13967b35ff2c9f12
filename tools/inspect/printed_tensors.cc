// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/printed_tensors.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/natural_order.h"
#include "fsdp/tools/inspect/summary_shares.h"

namespace fsdp {

void PrintedTensors::Add(const StoredTensor& tensor, std::string text) {
  if (order_ == TensorOrder::kAsListed) return sink_(text);
  items_.push_back({tensor.key.section, tensor.key.ToString(), PayloadBytes(tensor), std::move(text)});
}

void PrintedTensors::End() {
  std::stable_sort(items_.begin(), items_.end(), [this](const Item& a, const Item& b) {
    if (order_ == TensorOrder::kBySize && a.bytes != b.bytes) return a.bytes > b.bytes;
    return a.section != b.section ? a.section < b.section : IsNaturallyBefore(a.name, b.name);
  });
  for (const Item& item : items_) sink_(item.text);
}

}  // namespace fsdp
