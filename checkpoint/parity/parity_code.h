// SPDX-License-Identifier: Apache-2.0
//
// ParityCode: Reed-Solomon over GF(2^8). From `data` runs of bytes, all equally long, it makes `parity` more, and from
// any `data` of them all together it makes those that are lost. Byte i of each depends on bytes i of the others only.
// The matrix is the identity above Cauchy's, as ISA-L's gf_gen_cauchy1_matrix makes it: row data + p, column d, is the
// inverse of (data + p) XOR d in the field of polynomial 0x11d. Pure.
#ifndef FSDP_CHECKPOINT_PARITY_PARITY_CODE_H_
#define FSDP_CHECKPOINT_PARITY_PARITY_CODE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

class ParityCode {
 public:
  // Data and parity together; the field has no more rows.
  static constexpr int kMaxRuns = 255;

  // kInvalidArgument unless data >= 1, parity >= 1 and data + parity <= kMaxRuns.
  static absl::StatusOr<ParityCode> Create(int data, int parity);

  int data() const { return data_; }
  int parity() const { return parity_; }

  // Fills the parity runs from the data runs, `nbytes` each.
  void Encode(const std::vector<const std::byte*>& data, const std::vector<std::byte*>& parity, int64_t nbytes) const;

  // How to make the runs `lost` (indices; data first, then parity) from the runs `present`, of which there are data().
  // The runs `unused` are neither made nor read. kDataLoss when fewer than data() runs are left to read.
  class Decoder {
   public:
    // `present` and `lost` in the order of their indices at creation.
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
  std::vector<uint8_t> tables_;  // of the parity rows, as ISA-L wants them
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_PARITY_PARITY_CODE_H_
