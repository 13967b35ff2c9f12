// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/run_attributes.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/contents_digest.h"
#include "fsdp/collectives/group/same_on_ranks.h"

namespace fsdp {
namespace {

constexpr const char* kSections[] = {"model", "data", "options"};
constexpr char kDigest[] = "data.digest";
constexpr char kPath[] = "data.path";

std::string DigestOfTokens(std::string_view bytes) {
  const std::vector<ByteRange> ranges = DigestedRanges(static_cast<int64_t>(bytes.size()));
  DigestBuilder builder;
  for (const ByteRange& range : ranges) builder.Update(bytes.substr(range.offset, range.nbytes));
  const std::string kind = ranges.size() == 1 ? "xxh3-128:" : absl::StrCat("xxh3-128-of-", ranges.size(), "-blocks:");
  return kind + builder.Finish().ToHex();
}

// RunMetadata are UTF-8; the user's input need not be.
std::string Utf8Of(const std::string& text) { return CheckUtf8(text, "").ok() ? text : absl::CEscape(text); }

// The path as given by the user.
std::string PathOf(const TrainOptions& options) {
  if (!options.tokens.empty()) return Utf8Of(options.tokens);
  return options.data.empty() ? "this repository's sources" : Utf8Of(options.data);
}

std::string NameOf(const std::optional<DType>& dtype, DType otherwise = DType::kFloat32) {
  return std::string(DTypeName(dtype.value_or(otherwise)));
}

// Seeds are unsigned 64-bit integers, attributes signed ones.
AttributeValue SeedValue(uint64_t seed) {
  if (seed <= uint64_t{std::numeric_limits<int64_t>::max()}) return static_cast<int64_t>(seed);
  // A text, so that no seed is recorded as a negative number.
  return absl::StrCat(seed);
}

bool IsIn(std::string_view section, const std::string& name) {
  return absl::StartsWith(name, absl::StrCat(std::string(section), "."));
}

// The names of all attributes that a run of a model of this kind can have.
std::vector<std::string> KnownNames(const std::string& model_type) {
  CausalLmConfig config = Gpt2Config();
  if (model_type == "llama") {
    LlamaConfig llama;
    llama.rope.type = RopeConfig::Type::kLlama3;  // the type with the most fields
    config = llama;
  }
  RunMetadata all = InSection("model", CausalLmAttributes(config));
  all.merge(InSection("model", OtherCausalLmAttributes(config)));
  all.merge(OptionAttributes(TrainOptions(), 1, DeviceType::kCpu));
  std::vector<std::string> names = {kPath, "data.bytes", "data.token_bytes", kDigest};
  for (const auto& [name, value] : all) names.push_back(name);
  return names;
}

// Options that did not exist in the first releases, with the values that runs had then.
RunMetadata ImpliedOptions(const RunMetadata& saved) {
  const auto lr = saved.find("options.lr"), min_lr = saved.find("options.min_lr");
  if (lr == saved.end() || min_lr == saved.end()) return {};
  return {{"options.lr_schedule", lr->second == min_lr->second ? "constant" : "cosine"},
          {"options.lr_decay_steps", int64_t{0}},
          {"options.optimizer", "adamw"},
          {"options.amsgrad", false},
          {"options.momentum", 0.0},
          {"options.dtype", "float32"},
          {"options.bf16_stochastic_round", false},
          {"options.loss_chunks", int64_t{0}},
          {"options.symm_mem_for_comm", false}};
}

std::string SectionOf(const std::string& name) { return name.substr(0, name.find('.')); }

// The sections of `differences` that `saved` has no attributes of.
std::set<std::string> SectionsWithout(const RunMetadata& saved, const std::vector<AttributeDifference>& differences) {
  std::set<std::string> sections;
  for (const AttributeDifference& difference : differences) sections.insert(SectionOf(difference.name));
  for (const auto& [name, value] : saved) sections.erase(SectionOf(name));
  return sections;
}

// The sentence about one difference; empty if it need not be reported.
std::string DescribeDifference(const std::string& checkpoint, const RestoreOptions& run,
                               const AttributeDifference& difference) {
  const std::string text = ToString(difference);
  // A difference of the model is worth a sentence even if it is allowed.
  if (run.allowed.count(difference.name) != 0) {
    return run.required.count(difference.name) != 0 ? absl::StrCat("allowed to differ from ", checkpoint, ": ", text)
                                                    : "";
  }
  return absl::StrCat("differs from ", checkpoint, ": ", text);
}

// ToString cuts long texts, which are to be compared whole.
std::string TextOf(const AttributeValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : ToString(value);
}

// True if the optimizer casts parameters (unit.cc has the conditions).
bool OptimizerCasts(const TrainOptions& train, DeviceType device) {
  const FsdpOptions& options = train.fsdp;
  return train.dtype == DType::kFloat32 && options.optimizer_casts.value_or(device != DeviceType::kCpu) &&
         !options.cpu_offload.offload_params && options.mixed_precision.param_dtype == DType::kBFloat16;
}

}  // namespace

RunMetadata DataAttributes(const TrainOptions& options, const TokenData& data) {
  return {{kPath, PathOf(options)},
          {"data.bytes", static_cast<int64_t>(data.bytes().size())},
          {"data.token_bytes", data.token_bytes()},
          {kDigest, DigestOfTokens(data.bytes())}};
}

RunMetadata OptionAttributes(const TrainOptions& options, int world_size, DeviceType device) {
  const FsdpOptions& fsdp = options.fsdp;
  const MixedPrecision& precision = fsdp.mixed_precision;
  // The options that results depend on, so flags about speed, memory or output are missing.
  const RunMetadata attributes = {
      {"nproc", world_size},
      {"device", device == DeviceType::kCpu ? "cpu" : "cuda"},
      {"steps", options.learning_rate.steps},
      {"batch_size", options.batch_size},
      {"seq_len", options.seq_len},
      {"grad_accum", options.grad_accum},
      {"lr", options.learning_rate.lr},
      {"min_lr", options.learning_rate.min_lr},
      {"warmup_steps", options.learning_rate.warmup_steps},
      {"lr_schedule", std::string(LrScheduleName(options.learning_rate))},
      {"lr_decay_steps", options.learning_rate.decay_steps},
      {"optimizer", std::string(OptimizerKindName(options.optimizer))},
      {"amsgrad", options.adamw.amsgrad},
      {"momentum", options.momentum},
      {"weight_decay", options.adamw.weight_decay},
      {"beta1", options.adamw.beta1},
      {"beta2", options.adamw.beta2},
      {"eps", options.adamw.eps},
      {"max_grad_norm", options.max_grad_norm},
      {"seed", SeedValue(fsdp.init_seed)},
      {"freeze", Utf8Of(options.freeze)},
      {"api", options.api == TrainApi::kFsdp2 ? "fsdp2" : "fsdp1"},
      {"sharding_strategy", std::string(ShardingStrategyName(fsdp.sharding_strategy))},
      {"shard_group_size", fsdp.shard_group_size.value_or(0)},
      {"wrap", options.wrap},
      {"use_orig_params", fsdp.use_orig_params},
      {"dtype", NameOf(options.dtype)},
      {"bf16_stochastic_round", options.bf16_stochastic_round},
      {"param_dtype", NameOf(options.compute_dtype())},
      {"reduce_dtype", NameOf(precision.reduce_dtype, options.dtype)},
      {"buffer_dtype", NameOf(precision.buffer_dtype)},
      {"attention", options.AttentionOn(device) == AttentionKind::kOnline ? "online" : "eager"},
      {"loss_chunks", options.loss_chunks},
      {"output_dtype", NameOf(options.output_dtype, options.compute_dtype())},
      {"keep_low_precision_grads", precision.keep_low_precision_grads},
      {"cpu_offload", fsdp.cpu_offload.offload_params},
      {"optimizer_casts", OptimizerCasts(options, device)},
      {"symm_mem_for_comm", fsdp.symm_mem_for_comm}};  // NCCL's symmetric kernels may sum in another order
  return InSection("options", attributes);
}

RestoreOptions RunAttributes(const TrainOptions& options, const CausalLmConfig& config, const RunMetadata& data,
                             const ProcessGroup& group) {
  RestoreOptions run;
  // Models with equal attributes compute the same; a difference here is refused.
  run.required = InSection("model", CausalLmAttributes(config));
  // No number of a trained model depends on these, so they are only listed.
  run.listed = InSection("model", OtherCausalLmAttributes(config));
  run.listed.insert(data.begin(), data.end());
  run.listed.merge(OptionAttributes(options, group.size(), group.device()->type()));
  run.allowed = options.allow;
  return run;
}

RunMetadata ModelAttributes(const RunMetadata& attributes) {
  RunMetadata model;
  for (const auto& [name, value] : attributes) {
    if (IsIn("model", name)) model.emplace(name, value);
  }
  return model;
}

RunMetadata AllAttributes(const RestoreOptions& run) {
  RunMetadata all = run.required;
  all.insert(run.listed.begin(), run.listed.end());
  return all;
}

RunMetadata RecordedAttributes(const RestoreOptions& run) {
  RunMetadata recorded = AllAttributes(run);
  for (const auto& [name, value] : ImpliedOptions(recorded)) {
    if (const auto found = recorded.find(name); found != recorded.end() && found->second == value) {
      recorded.erase(found);
    }
  }
  return recorded;
}

RunMetadata WithImpliedOptions(RunMetadata saved) {
  RunMetadata implied = ImpliedOptions(saved);
  saved.merge(implied);
  return saved;
}

absl::StatusOr<std::set<std::string>> ParseAllowed(std::string_view text, const std::string& model_type) {
  const std::vector<std::string> known = KnownNames(model_type);
  std::set<std::string> allowed;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',', absl::SkipWhitespace())) {
    const std::string wanted(absl::StripAsciiWhitespace(part));
    bool is_known = false;
    for (const std::string& name : known) {
      // A name matches by itself, by its section, or without its section.
      if (name != wanted && !IsIn(wanted, name) && !absl::EndsWith(name, "." + wanted)) continue;
      allowed.insert(name);
      is_known = true;
    }
    // A misspelled name would allow nothing, and the run would be refused later for another reason.
    if (is_known) continue;
    return absl::InvalidArgumentError(absl::StrFormat("--allow=%s: expected %s, or one of %s", Printable(wanted),
                                                      absl::StrJoin(kSections, ", "), absl::StrJoin(known, ", ")));
  }
  return allowed;
}

std::string NotRecorded(const std::string& checkpoint) {
  return absl::StrCat(checkpoint, " does not record the config, the data and the options of the run that saved it: ",
                      "whether they are the same here is not known");
}

std::vector<std::string> DescribeDifferences(const std::string& checkpoint, const RestoreOptions& run,
                                             const std::vector<AttributeDifference>& differences) {
  std::vector<std::string> sentences;
  if (run.saved.empty()) return sentences;
  // A whole section without a record is one sentence, not one for each name.
  const std::set<std::string> unrecorded = SectionsWithout(run.saved, differences);
  for (const std::string& section : unrecorded) {
    sentences.push_back(absl::StrCat(checkpoint, " records nothing in the section ", section));
  }
  for (const AttributeDifference& difference : differences) {
    if (unrecorded.count(SectionOf(difference.name)) != 0) continue;
    std::string sentence = DescribeDifference(checkpoint, run, difference);
    if (sentence.empty()) continue;
    sentences.push_back(std::move(sentence));
    // A digest says nothing to a person.
    if (difference.name == kDigest && difference.saved.has_value()) {
      sentences.push_back(absl::StrCat("these are other tokens than ", checkpoint,
                                       " was trained on; pass --allow=data if this is intended"));
    }
  }
  return sentences;
}

// The digest of the tokens comes first: if hosts have other files, that is the difference to report.
absl::Status AgreeOnAttributes(RestoreOptions& run, ProcessGroup& group) {
  const RunMetadata mine = AllAttributes(run);
  FSDP_RETURN_IF_ERROR(CheckAttributes(mine));
  const std::string path = TextOf(mine.at(kPath));
  std::vector<RankFact> facts = {{kDigest, TextOf(mine.at(kDigest)), path}};
  for (const auto& [name, value] : mine) {
    // Ranks may have the tokens at different places.
    if (name != kPath && name != kDigest) facts.push_back({name, TextOf(value)});
  }
  FSDP_RETURN_IF_ERROR(CheckSameOnRanks(
      group, facts, "give every host the same tokens and config, and start all ranks with equal flags"));
  // A checkpoint records one path.
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, group.AllGatherObject(path));
  run.listed[kPath] = paths[0];
  return absl::OkStatus();
}

}  // namespace fsdp
