// SPDX-License-Identifier: Apache-2.0
//
// Mutator: makes the deterministic changes of fuzz_test.cc to inputs: like libFuzzer's, without feedback from coverage.
// Equal seeds give equal changes on every machine, so a failure can be repeated.
#ifndef FSDP_CHECKPOINT_FUZZ_MUTATOR_H_
#define FSDP_CHECKPOINT_FUZZ_MUTATOR_H_

#include <cstdint>
#include <random>
#include <string>

namespace fsdp {

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  // `text` after one to four changes: another byte, another bit, an inserted word of JSON or number at the limit of its
  // type, bytes removed or repeated, the end cut off.
  std::string Mutate(std::string text);

 private:
  std::mt19937 random_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_MUTATOR_H_
