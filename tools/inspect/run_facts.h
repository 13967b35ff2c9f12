// SPDX-License-Identifier: Apache-2.0
//
// RunFacts: what a checkpoint records about itself besides its tensors, for a page that is forwarded without it: where
// it is and from when, its config, data and options, its param_groups, its texts.
#ifndef FSDP_TOOLS_INSPECT_RUN_FACTS_H_
#define FSDP_TOOLS_INSPECT_RUN_FACTS_H_

#include <map>
#include <string>

#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct RunFacts {
  std::string absolute_path;
  std::string date;  // of the last change, "2026-11-27 07:20 UTC"; empty if it is unknown

  RunMetadata attributes;                    // StateDict::attributes
  std::map<StateKey, std::string> texts;     // whole ones up to kMaxFactBytes, and param_groups
  std::map<StateKey, int64_t> longer_texts;  // the sizes of the others
  std::string config;                        // the text of a Hugging Face directory's config.json; may be empty
};

inline constexpr int64_t kMaxFactBytes = int64_t{16} << 10;
inline constexpr int64_t kMaxParamGroupsBytes = int64_t{4} << 20;

// The facts of the checkpoint at `path`, which `source` has open. What cannot be read is left out.
RunFacts ReadRunFacts(const std::string& path, const TensorSource& source);

// Their section of a page; empty if there are none. Bounded: long values are cut, and of very many facts the first are
// shown and the others counted. Pure.
std::string FactsSection(const RunFacts& facts);

// `path` from the root directory on, without "." and ".."; a URL as it is.
std::string AbsolutePath(const std::string& path);

// "runs/step-00000100" of "/home/me/runs/step-00000100": what people call it. Pure.
std::string ShortPath(const std::string& absolute_path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_RUN_FACTS_H_
