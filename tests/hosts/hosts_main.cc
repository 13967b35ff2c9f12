// SPDX-License-Identifier: Apache-2.0
//
// main() of tests that use Hosts, in place of gtest_main.
#include "fsdp/tests/hosts/own_machine.h"
#include "gmock/gmock.h"

int main(int argc, char** argv) {
  fsdp::EnterOwnMachine(argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
