// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/dist_source.h"

#include <filesystem>
#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/megatron/megatron_source.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::Contains;

// NeMo writes the directory with Megatron-Core, under a name of its own, and counts as Lightning does.
TEST(DistSourceTest, WithoutAnIterationTheStepIsNeMosGlobalStep) {
  const std::string directory = NewTestDirectory() + "/weights";
  fs::copy("checkpoint/foreign/megatron/testdata/gpt_tp1_w1/iter_0000007", directory, fs::copy_options::recursive);
  fs::remove(directory + "/common.pt");
  StateDict values;
  values.Set(StateKey::Extra("global_step"), std::string("9"));
  values.Set(StateKey::Extra("epoch"), std::string("1"));
  ASSERT_OK(WriteTorchFile(directory + "/common.pt", values, ReadFromMemory(values), {}));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TensorSource> source, OpenMegatronSource(directory, {}));
  EXPECT_EQ(source->step(), 9);
  EXPECT_THAT(source->layout().notes, Contains("step 9 is \"global_step\" of common.pt"));
}

}  // namespace
}  // namespace fsdp
