// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/torch_outputs.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <array>
#include <map>
#include <string>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;

struct Heads {
  at::Tensor first;
  std::optional<at::Tensor> second;
  std::string name;
  template <typename Visitor>
  void VisitTensors(const Visitor& visit) const {
    visit(first);
    visit(second);
    visit(name);
  }
};

struct Opaque {
  at::Tensor hidden;
};

template <typename T>
std::vector<int> Found(const T& value) {
  std::vector<int> found;
  for (const at::Tensor& tensor : TensorsIn(value)) found.push_back(tensor.item<int>());
  return found;
}

at::Tensor Number(int value) { return at::scalar_tensor(value, at::kInt); }

TEST(TensorsInTest, FindsTensorsInEveryStructure) {
  EXPECT_THAT(Found(Number(1)), ElementsAre(1));
  EXPECT_THAT(Found(std::vector<at::Tensor>{Number(1), at::Tensor(), Number(2)}), ElementsAre(1, 2));
  EXPECT_THAT(Found(std::make_tuple(Number(1), 2.5, std::make_pair(Number(3), std::string("x")))), ElementsAre(1, 3));
  EXPECT_THAT(Found(std::map<std::string, std::array<at::Tensor, 2>>{{"a", {Number(4), Number(5)}}}),
              ElementsAre(4, 5));
  EXPECT_THAT(Found(std::make_shared<std::optional<at::Tensor>>(Number(6))), ElementsAre(6));
  EXPECT_THAT(Found(Heads{Number(7), Number(8), "x"}), ElementsAre(7, 8));
  EXPECT_THAT(Found(std::vector<Heads>{{Number(9), std::nullopt, ""}}), ElementsAre(9));
}

TEST(TensorsInTest, FindsTensorsInValuesOfTorchScript) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("loss", Number(2));
  const c10::IValue value(
      c10::ivalue::Tuple::create({Number(1), dict, c10::List<at::Tensor>({Number(3), Number(4)}), 5, c10::IValue()}));
  EXPECT_THAT(Found(value), ElementsAre(1, 2, 3, 4));
}

TEST(TensorsInTest, OtherTypesHaveNone) {
  EXPECT_THAT(Found(1.5), ElementsAre());
  EXPECT_THAT(Found(std::string("text")), ElementsAre());
  EXPECT_THAT(Found(Opaque{Number(1)}), ElementsAre());
}

}  // namespace
}  // namespace fsdp
