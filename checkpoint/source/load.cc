// SPDX-License-Identifier: Apache-2.0
//
// Loading is resharding. A state dict names the intervals of tensors that this rank wants; the checkpoint lists the
// intervals that it stores, cut for another world size or kind; the read plan is their intersection
// (native/read/read_plan.h):
//
//   stored by 2 ranks   |------ rank 0 ------|------ rank 1 ------|
//   wanted by 3 ranks   |--- rank 0 ---|--- rank 1 ---|--- rank 2 ---|
//   reads of rank 1                    |-----|--------|
//
// Each block that holds some wanted elements is read once, verified, and its parts are copied to their places,
// converted if the dtypes differ. Each rank plans and reads without communication, so ranks may load different tensors,
// and a failing rank does not block the others.
//
// Everything is checked before the first byte is read: an error of the plan leaves the wanted tensors untouched.
#include "fsdp/checkpoint/source/load.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/device_read.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/state_memory.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// One thread reads and verifies only a small part of the bandwidth of a GPU's link.
constexpr int kThreadsToHost = 4;
constexpr int kMostThreadsToGpu = 16;

bool IsOnGpu(const LoadOptions& options) {
  return options.device != nullptr && options.device->type() != DeviceType::kCpu;
}

int ThreadsOf(const LoadOptions& options) {
  if (options.io_threads.has_value() || !IsOnGpu(options)) return options.io_threads.value_or(kThreadsToHost);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreadsToGpu);
}

// How to leave out an unreadable optimizer with LoadCheckpoint, for messages.
constexpr char kLoadOfModel[] = "LoadCheckpoint of a state dict without optimizer";

// The reads and texts that fill one state dict from one source.
class LoadPlan {
 public:
  LoadPlan(const TensorSource& source, const StateDict& wanted, const std::string& path)
      : source_(source), wanted_(wanted), path_(path) {
    for (const auto& [key, value] : source.contents().entries()) {
      if (const std::optional<StateName> state = StateOfKey(key)) stepped_.emplace(state->fqn);
    }
    // Before its first step an optimizer has groups and no state.
    const bool is_of_the_start = source.step() == 0 && source.contents().FindText(StateKey::ParamGroups()) != nullptr;
    has_optimizer_ = is_of_the_start || !stepped_.empty();
  }

  absl::Status Add(const StateKey& key, const StateValue& value) {
    const std::optional<StateKey> stored = source_.contents().Resolve(key, wanted_.aliases);
    if (!stored) {
      const auto* const scalar = std::get_if<ShardedTensor>(&value);
      if (std::optional<ScalarOfText> number = NumberOf(key); number && scalar != nullptr) {
        return AddNumber(key, *std::move(number), *scalar);
      }
      (NeverStepped(key) ? never_stepped_ : missing_).push_back(key.ToString());
      return absl::OkStatus();
    }
    if (const auto* tensor = std::get_if<ShardedTensor>(&value)) return AddTensor(key, *stored, *tensor);
    const std::string* text = source_.contents().FindText(*stored);
    if (text == nullptr) return Refused(key, "a text is wanted, but a tensor stored");
    texts_.emplace_back(key, *text);
    return absl::OkStatus();
  }

  const std::vector<std::string>& missing() const { return missing_; }
  const std::vector<std::string>& never_stepped() const { return never_stepped_; }
  const std::vector<TensorRead>& reads() const { return reads_; }
  std::vector<DeviceRead> DeviceReads() const {
    std::vector<DeviceRead> reads;
    for (size_t i = 0; i < reads_.size(); ++i) reads.push_back({reads_[i], memory_[i]});
    return reads;
  }
  const std::vector<std::pair<StateKey, std::string>>& texts() const { return texts_; }

  // Writes the numbers that are wanted as tensors. Their memory is the host's, and the dtypes can be converted.
  absl::Status WriteNumbers() const {
    for (const Number& number : numbers_) {
      const Tensor& to = number.to;
      FSDP_RETURN_IF_ERROR(Convert(number.scalar.dtype, number.scalar.bytes.data(), to.dtype(), to.data(), 1));
    }
    return absl::OkStatus();
  }

 private:
  struct Number {
    ScalarOfText scalar;
    Tensor to;
  };

  // The number of Python that the source has for state `key`, under any of its parameter's names.
  std::optional<ScalarOfText> NumberOf(const StateKey& key) const {
    if (key.section != StateKey::Section::kOptimState) return std::nullopt;
    std::optional<ScalarOfText> number = FindScalarOfState(source_.contents(), key.fqn, key.state);
    const std::optional<StateKey> model = source_.contents().Resolve(StateKey::Model(key.fqn), wanted_.aliases);
    if (!number && model) number = FindScalarOfState(source_.contents(), model->fqn, key.state);
    return number;
  }

  absl::Status AddNumber(const StateKey& key, ScalarOfText number, const ShardedTensor& tensor) {
    if (tensor.shape.numel() != 1) {
      return Refused(key, absl::StrCat("a number is stored, and a tensor ", tensor.shape.ToString(), " wanted"));
    }
    for (const ShardedTensor::Shard& shard : tensor.shards) {
      if (shard.interval.empty()) continue;
      FSDP_RETURN_IF_ERROR(CheckShard(key, tensor, shard));
      if (shard.data.device().type != DeviceType::kCpu) {
        return Refused(key, "a number is stored, and a tensor on a GPU wanted");
      }
      numbers_.push_back({number, shard.data});
    }
    return absl::OkStatus();
  }

  // OK if the shard is inside the tensor, and its memory fits.
  absl::Status CheckShard(const StateKey& key, const ShardedTensor& tensor, const ShardedTensor::Shard& shard) const {
    const Interval& all = shard.interval;
    if (all.begin < 0 || all.begin > all.end || all.end > tensor.shape.numel()) {
      return Refused(key, absl::StrCat("wanted elements ", all.ToString(), " of ", tensor.shape.numel()));
    }
    if (!shard.data.defined() || shard.data.dtype() != tensor.dtype || shard.data.numel() != all.size()) {
      return Refused(key, absl::StrCat("the memory for elements ", all.ToString(), " does not fit them"));
    }
    return absl::OkStatus();
  }

  // True for optimizer state of a parameter that never had a gradient: the optimizer is there and stores no state for
  // the parameter.
  bool NeverStepped(const StateKey& key) const {
    if (key.section != StateKey::Section::kOptimState || !has_optimizer_) return false;
    const std::optional<StateKey> stored = source_.contents().Resolve(StateKey::Model(key.fqn), wanted_.aliases);
    return stored.has_value() && stepped_.count(stored->fqn) == 0 && stepped_.count(key.fqn) == 0;
  }

  absl::Status Refused(const StateKey& key, const std::string& why) const {
    return absl::InvalidArgumentError(absl::StrCat(Describe(key), ": ", why, " in ", path_));
  }

  absl::Status AddTensor(const StateKey& key, const StateKey& stored_key, const ShardedTensor& tensor) {
    const ShardedTensor* stored = source_.contents().FindTensor(stored_key);
    if (stored == nullptr) return Refused(key, "a tensor is wanted, but a text stored");
    if (stored->shape != tensor.shape) {
      return Refused(key,
                     absl::StrCat("stored shape ", stored->shape.ToString(), " != wanted ", tensor.shape.ToString()));
    }
    for (const ShardedTensor::Shard& shard : tensor.shards) {
      FSDP_RETURN_IF_ERROR(CheckShard(key, tensor, shard));
      reads_.push_back({stored_key, shard.interval, tensor.dtype, shard.data.data_as<std::byte>()});
      memory_.push_back(shard.data.buffer());
    }
    return absl::OkStatus();
  }

  const TensorSource& source_;
  const StateDict& wanted_;
  const std::string& path_;
  std::vector<TensorRead> reads_;
  std::vector<Buffer> memory_;  // of reads_
  std::vector<Number> numbers_;
  std::vector<std::pair<StateKey, std::string>> texts_;
  std::set<std::string> stepped_;  // parameters with optimizer state in the source
  bool has_optimizer_ = false;     // in the source
  std::vector<std::string> missing_, never_stepped_;
};

bool HoldsOptimizer(const StateDict& state) {
  return std::any_of(state.entries().begin(), state.entries().end(), [](const StateDict::Entry& entry) {
    return entry.first.section == StateKey::Section::kOptimState || entry.first == StateKey::ParamGroups();
  });
}

absl::Status CheckMissing(const LoadPlan& plan, const TensorSource& source, const std::string& path,
                          const LoadOptions& options) {
  const std::vector<std::string>& missing = plan.missing();
  if (options.missing != nullptr) {
    *options.missing = missing;
    options.missing->insert(options.missing->end(), plan.never_stepped().begin(), plan.never_stepped().end());
  }
  if (missing.empty() || !options.strict) return absl::OkStatus();
  constexpr size_t kNamed = 5;
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(kNamed, missing.size()); ++i) named.push_back(Quote(missing[i]));
  const std::string more = missing.size() > kNamed ? absl::StrCat(" and ", missing.size() - kNamed, " more") : "";
  const std::vector<std::string> left_out = source.left_out();
  const std::string links =
      left_out.empty() ? "" : absl::StrCat("; it is read without: ", absl::StrJoin(left_out, ", "));
  // Why an optimizer is among the extra values, for example.
  const std::vector<std::string>& notes = source.layout().notes;
  const std::string layout = notes.empty() ? "" : absl::StrCat("; ", absl::StrJoin(notes, "; "));
  return absl::NotFoundError(
      absl::StrCat(path, " does not hold what is wanted: ", absl::StrJoin(named, ", "), more, links, layout));
}

}  // namespace

TensorSourceOptions SourceOptionsFor(const StateDict& wanted, const LoadOptions& options) {
  // Every wanted value is either read or named as missing, so skipped links cannot hide an error.
  return {.verify = options.verify,
          .flat_layout = options.flat_layout,
          .model_only = !HoldsOptimizer(wanted),
          .skip_links = true,
          .map = options.map};
}

absl::Status NameLoadOptions(const absl::Status& status) {
  const absl::Status named = NameOptions(status, "LoadOptions");
  if (named.ok()) return named;
  return WithMessage(named, absl::StrReplaceAll(named.message(), {{"LoadOptions::model_only", kLoadOfModel}}));
}

absl::Status CheckLoadMemory(const StateDict& wanted, const LoadOptions& options) {
  return CheckMemory(wanted, options.device != nullptr ? options.device->id() : DeviceId{},
                     "LoadOptions::device names the device of what is wanted");
}

absl::Status LoadFrom(const TensorSource& source, const std::string& path, StateDict& wanted,
                      const LoadOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                        ThreadPool::Create(ThreadsOf(options), "checkpoint-io"));
  // The whole plan first: an error in any tensor is reported before memory of `wanted` changes.
  LoadPlan plan(source, wanted, path);
  for (const auto& [key, value] : wanted.entries()) FSDP_RETURN_IF_ERROR(plan.Add(key, value));
  FSDP_RETURN_IF_ERROR(CheckMissing(plan, source, path, options));
  FSDP_RETURN_IF_ERROR(IsOnGpu(options) ? ReadToDevice(source, plan.DeviceReads(), *options.device, *pool)
                                        : source.ReadAll(plan.reads(), *pool));
  FSDP_RETURN_IF_ERROR(plan.WriteNumbers());
  // Last, so that an error of reading leaves texts and attributes unchanged.
  for (const auto& [key, text] : plan.texts()) wanted.Set(key, text);
  wanted.attributes = source.contents().attributes;
  return absl::OkStatus();
}

}  // namespace fsdp
