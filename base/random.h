// SPDX-License-Identifier: Apache-2.0
//
// Random numbers as a pure function of a seed, a sequence and an index: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC11). So element i of a parameter has the same value on every rank that computes it,
// in any order and with any sharding. The floats have the same bits on every machine. Not for secrets.
#ifndef FSDP_BASE_RANDOM_H_
#define FSDP_BASE_RANDOM_H_

#include <array>
#include <cstdint>

#include "absl/types/span.h"

namespace fsdp {

class Philox {
 public:
  // Sequences of one seed are independent of each other. A hash of a parameter's name makes a good sequence.
  explicit Philox(uint64_t seed, uint64_t sequence = 0) : seed_(seed), sequence_(sequence) {}

  // Numbers 4 * block to 4 * block + 3 of the sequence: the cipher of counter {block, sequence} under key seed.
  std::array<uint32_t, 4> Block(uint64_t block) const;

  uint64_t seed() const { return seed_; }
  uint64_t sequence() const { return sequence_; }

 private:
  uint64_t seed_;
  uint64_t sequence_;
};

// Numbers `first`, `first` + 1, ... of the sequence. Runs on the calling thread; any division into calls gives the same
// numbers.
void FillBits(const Philox& philox, uint64_t first, absl::Span<uint32_t> out);

// Values `first`, `first` + 1, ... of the sequence, uniform in [0, 1): multiples of 2^-24. Value i is the upper 24 bits
// of number i of the sequence. Runs on the calling thread; any division into calls gives the same values.
void FillUniform(const Philox& philox, uint64_t first, absl::Span<float> out);

// Values `first`, `first` + 1, ... of the sequence, normal with mean 0 and standard deviation 1, by Box-Muller. Values
// 2k and 2k + 1 are computed from numbers 2k and 2k + 1, in float64, and rounded once. No magnitude exceeds 6.77.
void FillNormal(const Philox& philox, uint64_t first, absl::Span<float> out);

}  // namespace fsdp

#endif  // FSDP_BASE_RANDOM_H_
