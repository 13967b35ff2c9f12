// SPDX-License-Identifier: Apache-2.0
//
// SourceDescription: the files of a checkpoint of any format, and the elements of tensors in each of them, for `ckpt
// inspect`.
#ifndef FSDP_CHECKPOINT_SOURCE_SOURCE_DESCRIPTION_H_
#define FSDP_CHECKPOINT_SOURCE_SOURCE_DESCRIPTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/source/expansion.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/stored_values.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

struct DescribedFile {
  std::string name;  // below the directory that holds all files of the checkpoint: "model.pt", "mp_rank_00/model.pt"
  int64_t nbytes = 0;
  std::string path = {};  // TensorPlace::file; empty in a description that was not made from a source
};

struct SourceDescription {
  std::vector<DescribedFile> files;
  std::vector<StoredTensor> tensors;
  std::vector<StoredText> texts;
  int64_t step = -1;  // TensorSource::step()
  int world_size = 1;
  std::map<std::string, std::string> metadata;  // TensorSource::metadata()
  std::vector<std::string> left_out = {};       // TensorSource::left_out()
  RunMetadata attributes = {};                  // StateDict::attributes of its contents
  SourceLayout layout = {};                     // TensorSource::layout()
  Expansion expansion = {};                     // of all tensors; zero in a description that was not made from a source

  // Not null: `tensors` is empty, DescribeTensors makes one after the other. All of them together would take as much
  // memory as the source.
  std::shared_ptr<const TensorSource> source = nullptr;
};

// From the contents and places of `source`, which the result keeps; reads no payload.
SourceDescription DescribeSource(std::shared_ptr<const TensorSource> source);

// Calls `use` for each tensor of `source`, in the order of its contents, with its StoredBytes. `files` come from its
// DescribeSource. A tensor whose elements are not contiguous, or that is empty, has no file.
void DescribeTensors(const TensorSource& source, const std::vector<DescribedFile>& files,
                     const std::function<void(const StoredTensor& tensor, int64_t stored_bytes)>& use);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SOURCE_DESCRIPTION_H_
