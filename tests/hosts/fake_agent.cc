// SPDX-License-Identifier: Apache-2.0
//
// fake_agent: for tests: the store of torchrun's agent, on a host.
//
//   fake_agent ADDRESS PORT    prints "ready", and serves until it is killed
#include <unistd.h>

#include <cstdio>

#include "absl/strings/numbers.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/collectives/job/fake_torch_store.h"

int main(int argc, char** argv) {
  int port = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &port)) {
    std::fprintf(stderr, "wanted: fake_agent ADDRESS PORT\n");
    return fsdp::kExitUsage;
  }
  const fsdp::FakeTorchStore store(argv[1], port);
  std::printf("ready\n");
  std::fflush(stdout);
  while (true) pause();
}
