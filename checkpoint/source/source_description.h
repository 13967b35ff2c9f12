// SPDX-License-Identifier: Apache-2.0
//
// SourceDescription: the files of a checkpoint of any format, and which elements of which tensor each of them holds:
// what `ckpt inspect` shows.
#ifndef FSDP_CHECKPOINT_SOURCE_SOURCE_DESCRIPTION_H_
#define FSDP_CHECKPOINT_SOURCE_SOURCE_DESCRIPTION_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

struct SourceDescription {
  Manifest manifest;                            // of other formats: files, tensors, texts, step and world size only
  std::map<std::string, std::string> metadata;  // TensorSource::metadata()
  std::vector<std::string> left_out = {};       // TensorSource::left_out()
  Expansion expansion = {};                     // of all tensors; zero in a description that was not made of a source
  std::vector<int64_t> stored_bytes = {};       // StoredBytes of each tensor of the manifest; empty: all of its bytes
};

// From the contents and places of `source`; reads no payload. A tensor whose elements lie apart, or that is empty, is
// in no file of the description.
SourceDescription DescribeSource(const TensorSource& source);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SOURCE_DESCRIPTION_H_
