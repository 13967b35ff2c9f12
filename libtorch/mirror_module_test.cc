// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/mirror_module.h"

#include <torch/nn.h>

#include "fsdp/base/status_matchers.h"
#include "fsdp/libtorch/slot_storage.h"
#include "fsdp/libtorch/torch_module_trees.h"
#include "fsdp/libtorch/use_observer.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    list->push_back(torch::nn::Linear(2, 3));
    list->push_back(torch::nn::Linear(3, 2));
    register_module("list", list);
    tied = register_parameter("tied", list[0]->as<torch::nn::Linear>()->weight);
    steps = register_buffer("steps", torch::zeros({2}, at::kLong));
  }
  torch::nn::ModuleList list;
  at::Tensor tied, steps;
};

TEST(MirrorModuleTest, HasTheNamesTypesAndTiesOfTheModule) {
  NetImpl net;
  auto mirror = MirrorModule::Create(TreeOf(net));
  ASSERT_OK(mirror.status());
  (*mirror)->AssignNames();
  std::vector<std::string> names, types;
  for (const auto& [name, parameter] : (*mirror)->NamedParameters()) names.push_back(name + "=" + parameter->fqn);
  for (const auto& [name, module] : (*mirror)->NamedModules()) types.emplace_back(module->type_name());
  EXPECT_THAT(names, ElementsAre("tied=tied", "list.0.weight=tied", "list.0.bias=list.0.bias",
                                 "list.1.weight=list.1.weight", "list.1.bias=list.1.bias"));
  EXPECT_THAT(types, ElementsAre("Net", "ModuleList", "Linear", "Linear"));
  EXPECT_EQ((*mirror)->mirrored_parameters().size(), 4u);
  EXPECT_EQ((*mirror)->mirrored_buffers()[0].mirror->dtype, DType::kInt64);
  EXPECT_FALSE((*mirror)->Find("list")->has_forward());
  EXPECT_TRUE((*mirror)->Find("list.1")->has_forward());
  EXPECT_EQ((*mirror)->Find("list.2"), nullptr);
  EXPECT_TRUE(IsAnyTorch<torch::nn::LinearImpl>()(*(*mirror)->Find("list.0")));
  EXPECT_FALSE(IsAnyTorch<torch::nn::LinearImpl>()(**mirror));
}

TEST(MirrorModuleTest, RefersToTheMemoryOfTheModule) {
  NetImpl net;
  auto mirror = MirrorModule::Create(TreeOf(net));
  ASSERT_OK(mirror.status());
  EXPECT_EQ((*mirror)->mirrored_parameters()[0].mirror->data.data(), net.tied.data_ptr());
}

TEST(MirrorModuleTest, TensorsThatItCannotHoldAreNamedWithTheirPath) {
  torch::nn::Module outer("Outer");
  const auto child = std::make_shared<torch::nn::Module>("Inner");
  child->register_buffer("table", at::eye(3).to_sparse());
  outer.register_module("inner", child);
  EXPECT_THAT(MirrorModule::Create(TreeOf(outer)).status().message(),
              ::testing::AllOf(HasSubstr("buffer \"inner.table\""), HasSubstr("Sparse")));
}

// Records the observer's calls for a tensor over a storage and for views of it.
class Recorder final : public SlotOwner {
 public:
  void OnUse(int index, bool in_place) override { uses.emplace_back(index, in_place); }
  std::vector<std::pair<int, bool>> uses;
};

TEST(SlotStorageTest, EveryUseIsSeenAlsoOfViewsAndInLists) {
  Recorder recorder;
  const auto storage = c10::make_intrusive<SlotStorage>(&recorder, 7, 16, at::kCPU);
  at::Tensor tensor = SlotStorage::NewTensor(storage, at::kFloat, {2, 2});
  float values[] = {1, 2, 3, 4};
  storage->Bind(values, sizeof(values));
  EXPECT_EQ(tensor.sum().item<float>(), 10);
  EXPECT_TRUE(recorder.uses.empty());
  const UseObserver observer;
  const auto used = [&](const std::function<void()>& body) {
    recorder.uses.clear();
    body();
    const auto uses = recorder.uses;
    return uses.empty() ? std::make_pair(-1, false) : uses.front();
  };
  const at::Tensor view = tensor.t();
  EXPECT_EQ(used([&] { view.sum(); }), std::make_pair(7, false));
  EXPECT_EQ(used([&] { at::cat({at::ones({1, 2}), view}); }), std::make_pair(7, false));
  EXPECT_EQ(used([&] { tensor.data().add_(1); }), std::make_pair(7, true));
  EXPECT_EQ(used([&] { at::ones({2, 2}).add_(tensor); }), std::make_pair(7, false));
  EXPECT_EQ(values[0], 2);
  storage->Disown();
  EXPECT_EQ(used([&] { tensor.sum(); }), std::make_pair(-1, false));
}

TEST(SlotStorageTest, WithoutMemoryAUseThrowsTheMessageAndViewsFollow) {
  const auto storage = c10::make_intrusive<SlotStorage>(nullptr, 0, 16, at::kCPU);
  const at::Tensor tensor = SlotStorage::NewTensor(storage, at::kFloat, {4}), view = tensor.view({2, 2});
  storage->Unbind("not here");
  EXPECT_THROW(view.sum(), c10::Error);
  try {
    view.sum();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("not here"));
  }
  float first[] = {1, 2, 3, 4}, second[] = {5, 6, 7, 8};
  storage->Bind(first, sizeof(first));
  EXPECT_EQ(view.sum().item<float>(), 10);
  storage->Bind(second, sizeof(second));
  EXPECT_EQ(view.sum().item<float>(), 26);
}

}  // namespace
}  // namespace fsdp
