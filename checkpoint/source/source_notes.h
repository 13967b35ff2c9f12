// SPDX-License-Identifier: Apache-2.0
//
// SourceNotes: what a person who reads a checkpoint of another program has to know, in sentences. Programs print each
// after "note: ".
#ifndef FSDP_CHECKPOINT_SOURCE_SOURCE_NOTES_H_
#define FSDP_CHECKPOINT_SOURCE_SOURCE_NOTES_H_

#include <string>
#include <string_view>
#include <vector>

#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// How the files of `source` became its contents: its layout, unless all names are the usual ones, and what is left out.
// Options are named as members of `options`, as by NameOptions.
std::vector<std::string> SourceNotes(const TensorSource& source, std::string_view options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SOURCE_NOTES_H_
