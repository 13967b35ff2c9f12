// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_VOCABULARY_NOTE_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_VOCABULARY_NOTE_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// For SourceLayout::notes: of the embedding `name` of a vocabulary, which Megatron-Core pads so that tensor parallel
// ranks divide it. The padding is kept, because the files do not say where it begins. Empty for other names.
inline std::string VocabularyNote(const std::string& name, const Shape& shape) {
  if (!absl::EndsWith(name, "embedding.word_embeddings.weight") || shape.rank() == 0) return "";
  return absl::StrCat(Quote(name), " has ", shape.dim(0), " rows: those that pad the vocabulary are kept");
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_VOCABULARY_NOTE_H_
