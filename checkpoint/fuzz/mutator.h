// SPDX-License-Identifier: Apache-2.0
//
// Mutator: the deterministic changes that fuzz_test.cc makes to inputs: what libFuzzer does, less its feedback.
#ifndef FSDP_CHECKPOINT_FUZZ_MUTATOR_H_
#define FSDP_CHECKPOINT_FUZZ_MUTATOR_H_

#include <cstdint>
#include <random>
#include <string>

namespace fsdp {

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  // `text` after one to four changes: a byte, a bit, a word of JSON or a number at the edge of its type put in, bytes
  // taken out or repeated, the end cut off.
  std::string Mutate(std::string text);

 private:
  std::mt19937 random_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_MUTATOR_H_
