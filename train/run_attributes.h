// SPDX-License-Identifier: Apache-2.0
//
// The properties of a run, as attributes that its checkpoints keep and a resume compares, in three sections:
//
//   model    the config, by Hugging Face's names: model.n_head, model.layer_norm_epsilon, ...
//   data     the tokens: data.path as it was given, data.bytes, data.token_bytes and data.digest
//   options  the options that affect results, by the names of the flags: options.lr, options.batch_size, ...
//
// A model that differs is refused, unless --allow names the difference; the data and the options may differ, and are
// listed.
#ifndef FSDP_TRAIN_RUN_ATTRIBUTES_H_
#define FSDP_TRAIN_RUN_ATTRIBUTES_H_

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/train/token_data.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The section `data`. Up to 64 MiB the digest is the XXH3-128 of all tokens as in the file, "xxh3-128:<hex>". For more
// it covers 64 blocks of 1 MiB, the first, the last and others at equal distances, and is named
// "xxh3-128-of-64-blocks:<hex>": a file of any size is digested in less than a second, and a difference between these
// blocks is not noticed.
RunMetadata DataAttributes(const TrainOptions& options, const TokenData& data);

// The section `options`, of a run with `world_size` ranks on `device`.
RunMetadata OptionAttributes(const TrainOptions& options, int world_size, DeviceType device);

// The attributes for a restore: `required` is the model, `listed` the rest, `allowed` is options.allow; `saved` is
// empty.
RestoreOptions RunAttributes(const TrainOptions& options, const CausalLmConfig& config, const RunMetadata& data,
                             const ProcessGroup& group);

// The attributes in the section `model`.
RunMetadata ModelAttributes(const RunMetadata& attributes);

// All attributes of `run`.
RunMetadata AllAttributes(const RestoreOptions& run);

// The attributes of `run` that a checkpoint records: all but options of later releases that have the value which a run
// of an earlier release had, so that such a run saves the same bytes.
RunMetadata RecordedAttributes(const RestoreOptions& run);

// The inverse: `saved` with the values of options that it does not record. Unchanged if it records no options.
RunMetadata WithImpliedOptions(RunMetadata saved);

// The names that --allow=`text` lists, separated by commas and spaces, for a model of kind `model_type`. A name is an
// attribute's, "model.n_head", or the part after its section, "n_head"; a section means all its attributes.
// kInvalidArgument lists the known names if one is unknown.
absl::StatusOr<std::set<std::string>> ParseAllowed(std::string_view text, const std::string& model_type);

// The sentence about a checkpoint without attributes.
std::string NotRecorded(const std::string& checkpoint);

// Sentences for people about a run that continues from `checkpoint`, whose attributes were `run.saved`: one for each
// difference, except for data and options that run.allowed names; one for each section in which nothing was recorded;
// empty if nothing was recorded at all.
std::vector<std::string> DescribeDifferences(const std::string& checkpoint, const RestoreOptions& run,
                                             const std::vector<AttributeDifference>& differences);

// Makes sure that all ranks train the same: their attributes must be equal, except data.path, since ranks may have the
// tokens at different places; `run` then has rank 0's on every rank. kFailedPrecondition, on every rank, names the
// first attribute that differs, both values, ranks and hosts (CheckSameOnRanks). Collective.
absl::Status AgreeOnAttributes(RestoreOptions& run, ProcessGroup& group);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_ATTRIBUTES_H_
