// SPDX-License-Identifier: Apache-2.0
//
// ParityCode: a systematic Reed-Solomon code over GF(2^8). It computes `parity` runs of bytes from `data` runs of the
// same length, and rebuilds lost runs of either kind from any `data` remaining runs. Byte i of a run depends only on
// bytes i of the others, so runs can be cut anywhere and processed independently.
//
// The code's matrix is part of the checkpoint format: the identity above a Cauchy matrix, as ISA-L's
// gf_gen_cauchy1_matrix makes it. Row data + p, column d, is the inverse of (data + p) XOR d in the field of polynomial
// 0x11d. Every square submatrix of a Cauchy matrix is invertible, which a Vandermonde matrix does not guarantee: hence
// any `parity` losses can be repaired.
//
// Immutable once made, so its calls can run on several threads at the same time. No I/O.
#ifndef FSDP_CHECKPOINT_NATIVE_PARITY_PARITY_CODE_H_
#define FSDP_CHECKPOINT_NATIVE_PARITY_PARITY_CODE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

class ParityCode {
 public:
  // Maximum number of runs, data and parity together: each row needs its own element of the field.
  static constexpr int kMaxRuns = 255;

  // kInvalidArgument unless data >= 1, parity >= 1 and data + parity <= kMaxRuns.
  static absl::StatusOr<ParityCode> Create(int data, int parity);

  int data() const { return data_; }
  int parity() const { return parity_; }

  // Computes the parity runs from the data runs. All runs have `nbytes` bytes, at most INT32_MAX.
  void Encode(const std::vector<const std::byte*>& data, const std::vector<std::byte*>& parity, int64_t nbytes) const;

  // Rebuilds the runs `lost` from data() others. Runs are named by index: data first, then parity. The runs `unused`
  // are neither rebuilt nor read. kDataLoss when fewer than data() runs remain to read. Costs O(data^3) once.
  class Decoder {
   public:
    // Fills `lost` from `present`; both in the order of NewDecoder and present(). `nbytes` as in Encode.
    void Decode(const std::vector<const std::byte*>& present, const std::vector<std::byte*>& lost,
                int64_t nbytes) const;
    const std::vector<int>& present() const { return present_; }

   private:
    friend class ParityCode;
    std::vector<int> present_;
    int lost_ = 0;
    std::vector<uint8_t> tables_;
  };
  absl::StatusOr<Decoder> NewDecoder(const std::vector<int>& lost, const std::vector<int>& unused = {}) const;

 private:
  ParityCode(int data, int parity);

  int data_;
  int parity_;
  std::vector<uint8_t> matrix_;  // [data + parity, data]
  std::vector<uint8_t> tables_;  // of the parity rows, in ISA-L's form
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_PARITY_PARITY_CODE_H_
