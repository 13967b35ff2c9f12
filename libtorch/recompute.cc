// SPDX-License-Identifier: Apache-2.0
//
// Autograd's graph has one node for the part:
//
//   forward    run the part without recording it; keep its inputs, and the state of the generators before and after
//   backward   set the generators back; run the part again, recorded, on copies of the inputs; backward through that,
//              within this backward (reentrant), which accumulates into the parameters; return the inputs' gradients
//
// All threads of a process share the generators. If another thread draws from one in the meantime, the second run drops
// other elements than the first. It then leaves the generator in another state, which is reported as an error, so a
// gradient is never wrong.
#include "fsdp/libtorch/recompute.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <utility>

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The default generators of the host and of one more device.
class Generators final {
 public:
  explicit Generators(const std::vector<at::Tensor>& inputs) {
    generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
    for (const at::Tensor& input : inputs) {
      if (!input.defined() || input.device().is_cpu()) continue;
      generators_.push_back(at::globalContext().defaultGenerator(input.device()));
      break;
    }
  }

  std::vector<at::Tensor> State() {
    std::vector<at::Tensor> states;
    for (at::Generator& generator : generators_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states.push_back(generator.get_state());
    }
    return states;
  }

  void SetState(const std::vector<at::Tensor>& states) {
    for (size_t i = 0; i < states.size(); ++i) {
      const std::lock_guard<std::mutex> lock(generators_[i].mutex());
      generators_[i].set_state(states[i]);
    }
  }

  static bool Equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (!at::equal(a[i], b[i])) return false;
    }
    return true;
  }

 private:
  std::vector<at::Generator> generators_;
};

// Kept by the node in addition to the inputs.
struct Part {
  std::weak_ptr<UnitFollower> follower;
  TensorsFunction forward;
  std::vector<bool> required;  // one per input
  std::vector<at::Tensor> before, after;
  bool draws = false;
  bool several = false;  // uses several units
};

std::vector<at::Tensor> RunFirst(UnitFollower& follower, Part& part, const std::vector<at::Tensor>& inputs) {
  Generators generators(inputs);
  part.before = generators.State();
  follower.BeginSegment();
  std::vector<at::Tensor> outputs;
  try {
    outputs = part.forward(inputs);
  } catch (...) {
    follower.EndSegment();
    throw;
  }
  part.several = follower.EndSegment();
  part.after = generators.State();
  part.draws = !Generators::Equal(part.before, part.after);
  // A part that draws nothing needs no states, and runs again without setting generators.
  if (!part.draws) part.before = part.after = {};
  return outputs;
}

std::vector<at::Tensor> RunAgain(const Part& part, const std::vector<at::Tensor>& inputs) {
  at::AutoGradMode grad(true);
  if (!part.draws) return part.forward(inputs);
  Generators generators(inputs);
  const std::vector<at::Tensor> now = generators.State();
  generators.SetState(part.before);
  std::vector<at::Tensor> outputs = part.forward(inputs);
  const bool same = Generators::Equal(generators.State(), part.after);
  // Code after the part must draw as if the part had not run again.
  generators.SetState(now);
  TORCH_CHECK(same,
              "Checkpoint: the second run drew other random numbers than the first; is another thread drawing from "
              "the default generator? Ranks that use dropout under Checkpoint must be processes");
  return outputs;
}

// Runs backward of the second run, from the outputs that have a gradient.
void BackwardOf(const std::vector<at::Tensor>& outputs, const variable_list& grads) {
  TORCH_CHECK(outputs.size() == grads.size(), "Checkpoint: the first run returned ", grads.size(),
              " tensors, the second ", outputs.size());
  variable_list roots, root_grads;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || !grads[i].defined()) continue;
    roots.push_back(outputs[i]);
    root_grads.push_back(grads[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_grads);
}

struct RecomputedPart : torch::autograd::Function<RecomputedPart> {
  // `anchor` requires a gradient, so that the part is in the graph even if no input does.
  static variable_list forward(AutogradContext* ctx, const std::shared_ptr<Part>& part, const at::Tensor& anchor,
                               at::TensorList inputs) {
    (void)anchor;
    const std::shared_ptr<UnitFollower> follower = part->follower.lock();
    ctx->saved_data["part"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(part));
    ctx->save_for_backward(inputs.vec());
    return RunFirst(*follower, *part, inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const std::shared_ptr<Part> part =
        static_cast<Holder*>(ctx->saved_data["part"].toCapsule().get())->part;  // NOLINT: Holder is the only capsule
    const std::shared_ptr<UnitFollower> follower = part->follower.lock();
    TORCH_CHECK(follower != nullptr, "backward of a graph whose ShardedModule is gone");
    TORCH_CHECK(!at::GradMode::is_enabled(), "backward with create_graph of a sharded module is not supported");
    follower->BeginBackward();  // before the nested backward, which ends earlier
    variable_list inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      const size_t i = inputs.size();
      inputs.push_back(saved.defined() ? saved.detach().requires_grad_(part->required[i]) : saved);
    }
    const bool before = follower->SetRecomputing(part->several);
    std::vector<at::Tensor> outputs;
    {
      const std::unique_ptr<OperandCastScope> casts = follower->CastOperands();
      outputs = RunAgain(*part, inputs);
    }
    follower->SetRecomputing(before);
    BackwardOf(outputs, grads);
    variable_list result{at::Tensor(), at::Tensor()};  // of the part and the anchor
    for (const at::Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : at::Tensor());
    return result;
  }

 private:
  struct Holder final : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Part> part) : part(std::move(part)) {}
    std::shared_ptr<Part> part;
  };
};

}  // namespace

std::vector<at::Tensor> Recompute(const std::shared_ptr<UnitFollower>& follower, TensorsFunction forward,
                                  const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return forward(inputs);
  TORCH_CHECK(follower->in_pass(), "Checkpoint outside of ShardedModule::Forward");
  auto part = std::make_shared<Part>();
  part->follower = follower;
  part->forward = std::move(forward);
  for (const at::Tensor& input : inputs) part->required.push_back(input.defined() && input.requires_grad());
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return RecomputedPart::apply(part, anchor, at::TensorList(inputs));
}

}  // namespace fsdp
