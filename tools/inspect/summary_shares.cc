// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/summary_shares.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/quote.h"
#include "fsdp/tools/cli/progress.h"

namespace fsdp {
namespace {

// "842,624".
std::string Grouped(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

int Width(const std::string& text, int limit) { return std::ssize(text) <= limit ? static_cast<int>(text.size()) : 0; }

}  // namespace

int64_t PayloadBytes(const StoredTensor& tensor) { return tensor.shape.numel() * SizeOf(tensor.dtype); }

std::string TensorShare::ToString() const {
  return absl::StrCat(Counted(tensors, "tensor"), ", ", FormatBytes(static_cast<double>(bytes)));
}

void SectionShare::Add(const StoredTensor& tensor) {
  share.Add(PayloadBytes(tensor));
  elements += tensor.shape.numel();
  ++dtypes[tensor.dtype];
}

std::string SectionShare::ToString() const {
  if (share.tensors == 0) return share.ToString();
  std::string text = absl::StrCat(share.ToString(), ": ", Grouped(elements), elements == 1 ? " element" : " elements");
  for (const auto& [dtype, count] : dtypes) {
    absl::StrAppend(&text, ", ", dtypes.size() == 1 ? "" : absl::StrCat(count, " of "), std::string(DTypeName(dtype)));
  }
  return text;
}

void TensorColumnWidths::Add(const StoredTensor& tensor) {
  name = std::max(name, Width(Printable(tensor.key.ToString()), 72));
  type = std::max(type, Width(TypeText(tensor), 40));
}

std::string TensorColumnWidths::TypeText(const StoredTensor& tensor) {
  return absl::StrCat(std::string(DTypeName(tensor.dtype)), " ", tensor.shape.ToString());
}

SummaryShares SummaryShares::Of(const CheckpointSummary& summary) {
  SummaryShares shares;
  shares.files.resize(summary.manifest.files.size());
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t) {
    shares.all.Add(PayloadBytes(tensor));
    shares.sections[tensor.key.section].Add(tensor);
    shares.columns.Add(tensor);
    // Intervals in one file follow each other, so another file is one that was not counted yet.
    int previous = -1;
    for (const StoredInterval& part : tensor.intervals) {
      shares.files[part.file].bytes += part.interval.size() * SizeOf(tensor.dtype);
      if (part.file != previous) ++shares.files[part.file].tensors;
      previous = part.file;
    }
  });
  return shares;
}

}  // namespace fsdp
