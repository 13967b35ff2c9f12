// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/backward_thread.h"

#include <c10/core/AutogradState.h>

#include <memory>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

bool HasThreads() { return c10::AutogradState::get_tls_state().get_multithreading_enabled(); }

TEST(BackwardOnCallerTest, AutogradHasNoThreadsOfItsOwnUntilTheLastOneIsGone) {
  ASSERT_TRUE(HasThreads());
  auto first = std::make_optional<BackwardOnCaller>(), second = std::make_optional<BackwardOnCaller>();
  EXPECT_FALSE(HasThreads());
  first.reset();
  EXPECT_FALSE(HasThreads());
  second.reset();
  EXPECT_TRUE(HasThreads());
}

TEST(BackwardOnCallerTest, WhatTheProgramHadSetStays) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  { const BackwardOnCaller on_caller; }
  EXPECT_FALSE(HasThreads());
  c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
}

TEST(BackwardOnCallerTest, ItIsOfItsThreadAlone) {
  std::thread([] {
    auto here = std::make_unique<BackwardOnCaller>();
    EXPECT_TRUE(here->is_mine());
    std::thread([&here] {
      EXPECT_FALSE(here->is_mine());
      EXPECT_TRUE(HasThreads());
      const BackwardOnCaller there;
      here.reset();
      EXPECT_FALSE(HasThreads());
    }).join();
    EXPECT_FALSE(HasThreads());
  }).join();
}

}  // namespace
}  // namespace fsdp
