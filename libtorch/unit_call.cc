// SPDX-License-Identifier: Apache-2.0
//
// A module does not know that it is sharded, nor do its parents: a table of the process lists the units.
#include "fsdp/libtorch/unit_call.h"

#include <map>
#include <mutex>

#include "fsdp/libtorch/recompute.h"
#include "fsdp/libtorch/unit_follower.h"

namespace fsdp {
namespace {

struct Entry {
  std::weak_ptr<UnitFollower> follower;
  int node = -1;
  UnitBorder border = {};
};

struct Table {
  std::mutex mutex;
  std::map<const torch::nn::Module*, Entry> entries;  // guarded by mutex
};

Table& Units() {
  // Never destroyed: modules may still be called while the process exits.
  static auto& table = *new Table;
  return table;
}

}  // namespace

CallUnitRegistry::CallUnitRegistry(const std::shared_ptr<UnitFollower>& follower, std::vector<Called> called)
    : called_(std::move(called)) {
  const std::lock_guard<std::mutex> lock(Units().mutex);
  for (const Called& one : called_) Units().entries[one.module] = {follower, one.node, one.border};
}

CallUnitRegistry::~CallUnitRegistry() {
  const std::lock_guard<std::mutex> lock(Units().mutex);
  for (const Called& one : called_) Units().entries.erase(one.module);
}

CallUnitScope::CallUnitScope(const torch::nn::Module& module) {
  const std::lock_guard<std::mutex> lock(Units().mutex);
  const auto entry = Units().entries.find(&module);
  if (entry == Units().entries.end()) return;
  follower_ = entry->second.follower.lock();
  node_ = entry->second.node;
  border_ = entry->second.border;
}

CallUnitScope::~CallUnitScope() = default;

at::Tensor CallUnitScope::CastInput(const at::Tensor& input) {
  if (follower_ == nullptr) return input;
  const auto type = border_.InputType(follower_->training());
  if (!type.has_value() || !input.is_floating_point()) return input;
  // The dtype of the first input that is cast is the dtype to restore.
  if (!input_type_.has_value()) input_type_ = input.scalar_type();
  return input.to(*type);
}

at::Tensor CallUnitScope::CastOutput(const at::Tensor& output) const {
  if (follower_ == nullptr) return output;
  const auto type = border_.restores ? input_type_ : border_.output_type;
  return type.has_value() ? CastFloating(output, *type) : output;
}

std::vector<at::Tensor> CallUnitScope::Recompute(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward,
    const std::vector<at::Tensor>& inputs) const {
  // Weakly: autograd's graph keeps this function, and must not keep the sharded module alive.
  const auto as_unit = [follower = std::weak_ptr<UnitFollower>(follower_), node = node_,
                        forward = std::move(forward)](const std::vector<at::Tensor>& given) {
    const Within within(follower.lock(), node);
    std::vector<at::Tensor> outputs = forward(given);
    within.Close();
    return outputs;
  };
  return fsdp::Recompute(follower_, as_unit, inputs);
}

CallUnitScope::Within::Within(std::shared_ptr<UnitFollower> follower, int node)
    : follower_(std::move(follower)), node_(node) {
  if (follower_ != nullptr) follower_->BeginCall(node_);
}

CallUnitScope::Within::~Within() {
  if (follower_ != nullptr) follower_->EndCall(node_);
}

void CallUnitScope::Within::Close() const {
  if (follower_ != nullptr) follower_->LeaveCalled(node_);
}

}  // namespace fsdp
