// SPDX-License-Identifier: Apache-2.0
//
// CarriedFiles: what a conversion from one Hugging Face directory to another copies besides the tensors, so that the
// new directory loads as the old one does: config, tokenizer and generation files. Weights, indexes, code and the state
// of a trainer are not copied.
#ifndef FSDP_CHECKPOINT_CONVERT_CARRIED_FILES_H_
#define FSDP_CHECKPOINT_CONVERT_CARRIED_FILES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct CarriedFiles {
  std::map<std::string, std::string> files;  // SafetensorsTarget::carried
  std::vector<std::string> notes;  // which files are carried, and which are not for a reason that may surprise

  // For a target that cannot hold them: no files, and a note that names these.
  CarriedFiles LeftBehind() const;
};

// The files of the directory `source`, whose tensors are converted to `dtype`; none without a config.json in it. A link
// is replaced by the contents of its file, if that is in the same directory or among the blobs of the hub's cache; a
// link that leads elsewhere is not followed, so that a directory of unknown origin cannot put another file of this
// machine into the result.
CarriedFiles FindCarriedFiles(const std::string& source, const std::optional<DType>& dtype);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CARRIED_FILES_H_
