// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/stochastic_rounding.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/random.h"

namespace fsdp {
namespace {

// Sequences of one step: one for each tensor that a step can round.
constexpr uint64_t kSequences = 8;

// A part of a larger tensor, which other ranks have other parts of, has numbers of its own.
std::string NameOf(const ShardedParameter& parameter) {
  if (!parameter.part) return parameter.fqn;
  return absl::StrCat(parameter.fqn, "[", parameter.part->dim, ":", parameter.part->begin, "]");
}

}  // namespace

StochasticRounding::StochasticRounding(uint64_t seed, const ShardedParameter& parameter, int64_t step)
    : seed_(seed),
      sequence_(DigestOf(NameOf(parameter)).low + kSequences * static_cast<uint64_t>(step)),
      first_(parameter.interval.begin) {}

void StochasticRounding::Fill(int tensor, int64_t begin, absl::Span<uint32_t> numbers) const {
  FillBits(Philox(seed_, sequence_ + tensor), first_ + begin, numbers);
}

void StochasticRounding::FillWhole(int tensor, int64_t begin, absl::Span<uint32_t> numbers) const {
  FillBits(Philox(seed_, sequence_ + tensor), begin, numbers);
}

// Adds up to one unit of the last place that is kept, less one bit: it carries with the probability of the bits that
// are cut off. An infinity has no bits to carry.
uint16_t RoundAtRandom(float value, uint32_t number) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = std::isnan(value) ? bits | 0x00400000u : bits + (number >> 16);
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace fsdp
