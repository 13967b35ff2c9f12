// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/training_step.h"

#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/optimizer_form.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// fairseq adds an element for each change of the optimizer. The last one is of this checkpoint.
constexpr char kFairseqHistory[] = "optimizer_history";

// Names in deeper dicts belong to parts of the program, such as samplers.
constexpr int kMostDepth = 3;

std::optional<int64_t> WholeNumber(const PythonJson& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= uint64_t{INT64_MAX} ? std::make_optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    return number >= 0 ? std::make_optional(number) : std::nullopt;
  }
  if (value.is_number_float()) return StepOfNumber(value.get<double>());
  return value.is_string() ? StepOfText(value.get_ref<const std::string&>()) : std::nullopt;
}

template <typename T>
std::optional<int64_t> IntegerOf(const std::string& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  if (value < T{0} || static_cast<uint64_t>(value) > uint64_t{INT64_MAX}) return std::nullopt;
  return static_cast<int64_t>(value);
}

// The element whose bytes these are.
std::optional<int64_t> WholeNumber(DType dtype, const std::string& bytes) {
  switch (dtype) {
    case DType::kInt8:
      return IntegerOf<int8_t>(bytes);
    case DType::kInt16:
      return IntegerOf<int16_t>(bytes);
    case DType::kInt32:
      return IntegerOf<int32_t>(bytes);
    case DType::kInt64:
      return IntegerOf<int64_t>(bytes);
    case DType::kUInt8:
      return IntegerOf<uint8_t>(bytes);
    case DType::kUInt16:
      return IntegerOf<uint16_t>(bytes);
    case DType::kUInt32:
      return IntegerOf<uint32_t>(bytes);
    case DType::kUInt64:
      return IntegerOf<uint64_t>(bytes);
    default:
      break;
  }
  double value = 0;
  const bool is_number = IsFloatingPoint(dtype) && Convert(dtype, bytes.data(), DType::kFloat64, &value, 1).ok();
  return is_number ? StepOfNumber(value) : std::nullopt;
}

// "lr_scheduler", "schedulers": such a counter is often one ahead.
bool IsScheduler(const std::string& key) { return absl::StrContains(absl::AsciiStrToLower(key), "sched"); }

}  // namespace

std::optional<TrainingStep::Rank> TrainingStep::RankOf(const std::string& key, int depth) {
  const std::optional<size_t> order = StepCounterOrder(key);
  const bool is_epoch = IsEpochCounter(key);
  if (!order || (is_epoch && depth > 0)) return std::nullopt;
  return Rank(is_epoch, depth, *order + 1);
}

// Looks at each value once, on the walk that builds the state, and keeps the best counter: nearer to the top first,
// then by the order of names in step_counter.h.
absl::Status TrainingStep::Add(const std::string& name, const std::string& key, int depth, const TorchNode& node) {
  // An optimizer has a step of each parameter.
  const bool is_optimizer = OptimizerMembers(node).form() != OptimizerMembers::Form::kNone;
  if (depth > kMostDepth || is_optimizer || IsScheduler(key)) return absl::OkStatus();
  if (node.kind() == TorchNode::Kind::kTensor) return AddTensor(name, key, depth, node.tensor());
  if (node.kind() == TorchNode::Kind::kValue) {
    AddValue(name, key, depth, node.value());
    return absl::OkStatus();
  }
  if (node.is_list) {
    if (key != kFairseqHistory || node.members().empty()) return absl::OkStatus();
    const auto& [index, last] = node.members().back();
    return Add(absl::StrCat(name, ".", index), "", depth + 1, last);
  }
  for (const auto& [inner, member] : node.members()) {
    FSDP_RETURN_IF_ERROR(Add(absl::StrCat(name, ".", inner), inner, depth + 1, member));
  }
  return absl::OkStatus();
}

absl::Status TrainingStep::AddTensor(const std::string& name, const std::string& key, int depth, int tensor) {
  const std::optional<Rank> rank = RankOf(key, depth);
  if (!rank || read_ == nullptr) return absl::OkStatus();
  const TorchLeafType type = tensors_[tensor];
  if (type.shape.numel() != 1) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(read_, tensor, type.dtype, {0, 1}));
  if (const std::optional<int64_t> value = WholeNumber(type.dtype, bytes)) Take(name, *rank, *value);
  return absl::OkStatus();
}

void TrainingStep::AddValue(const std::string& name, const std::string& key, int depth, const PythonJson& value) {
  if (value.is_object() && !value.contains(kPythonTag) && depth < kMostDepth) {
    AddMembers(name, key, depth, value);
    return;
  }
  if (key == kFairseqHistory && value.is_array() && !value.empty()) {
    AddValue(absl::StrCat(name, ".", value.size() - 1), "", depth + 1, value.back());
    return;
  }
  const std::optional<Rank> rank = RankOf(key, depth);
  const std::optional<int64_t> number = rank ? WholeNumber(value) : std::nullopt;
  if (number) Take(name, *rank, *number);
}

// The counters of a dict. Two programs have a dict of a known form, whose counter has a name that says little anywhere
// else; it counts before other names of the same depth, which 0 as the place in the list says.
void TrainingStep::AddMembers(const std::string& name, const std::string& key, int depth, const PythonJson& dict) {
  const auto take = [&](const char* counter, bool is_epoch) {
    const std::optional<int64_t> number = WholeNumber(dict[counter]);
    if (number) Take(absl::StrCat(name, ".", counter), Rank(is_epoch, depth + 1, 0), *number);
  };
  // Composer's "iteration" is a number of whole runs over the data.
  if (key == "timestamp" && dict.contains("batch") && dict.contains("batch_in_epoch")) return take("batch", false);
  if (key == "reporter" && dict.contains("stats") && dict.contains("epoch")) return take("epoch", true);  // ESPnet
  for (const auto& [inner, member] : dict.items()) {
    if (!IsScheduler(inner)) AddValue(absl::StrCat(name, ".", inner), inner, depth + 1, member);
  }
}

// Two equally good counters that differ make the step unknown, rather than one of them true.
void TrainingStep::Take(const std::string& name, Rank rank, int64_t value) {
  if (!step_ || rank < rank_) {
    step_ = value;
    name_ = name;
    rank_ = rank;
    is_ambiguous_ = false;
  } else if (rank == rank_ && value != *step_) {
    is_ambiguous_ = true;
    other_ = name;
  }
}

std::string TrainingStep::note() const {
  if (!step_ || (name_ == "step" && !is_ambiguous_)) return "";
  if (!is_ambiguous_) return absl::StrCat("step ", *step_, " is ", Quote(name_));
  return absl::StrCat("the step is unknown: ", Quote(name_), " and ", Quote(other_), " differ");
}

}  // namespace fsdp
