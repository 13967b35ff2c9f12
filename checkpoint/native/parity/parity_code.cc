// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/parity/parity_code.h"

#include <isa-l/erasure_code.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"

namespace fsdp {
namespace {

// ISA-L expands each coefficient of the matrix to products with all low and all high nibbles, for its SIMD look-up.
constexpr int kTableBytes = 32;

// to = matrix * from, byte by byte, with the matrix in `tables`. ISA-L only reads its inputs, although it takes
// pointers that are not const; its lengths are int.
void Apply(const std::vector<uint8_t>& tables, const std::vector<const std::byte*>& from,
           const std::vector<std::byte*>& to, int64_t nbytes) {
  Check(nbytes >= 0 && nbytes <= INT32_MAX, "a run of parity is too long for one call");
  std::vector<unsigned char*> in;
  std::vector<unsigned char*> out;
  for (const std::byte* run : from) in.push_back(reinterpret_cast<unsigned char*>(const_cast<std::byte*>(run)));
  for (std::byte* run : to) out.push_back(reinterpret_cast<unsigned char*>(run));
  ec_encode_data(static_cast<int>(nbytes), static_cast<int>(in.size()), static_cast<int>(out.size()),
                 const_cast<unsigned char*>(tables.data()), in.data(), out.data());
}

}  // namespace

absl::StatusOr<ParityCode> ParityCode::Create(int data, int parity) {
  if (data >= 1 && parity >= 1 && data < kMaxRuns && parity <= kMaxRuns - data) return ParityCode(data, parity);
  return absl::InvalidArgumentError(absl::StrCat("parity of ", parity, " files over ", data,
                                                 ", expected at least 1 of each and at most ", kMaxRuns, " together"));
}

ParityCode::ParityCode(int data, int parity)
    : data_(data), parity_(parity), matrix_((data + parity) * data), tables_(kTableBytes * data * parity) {
  gf_gen_cauchy1_matrix(matrix_.data(), data + parity, data);
  ec_init_tables(data, parity, matrix_.data() + data * data, tables_.data());
}

void ParityCode::Encode(const std::vector<const std::byte*>& data, const std::vector<std::byte*>& parity,
                        int64_t nbytes) const {
  Apply(tables_, data, parity, nbytes);
}

absl::StatusOr<ParityCode::Decoder> ParityCode::NewDecoder(const std::vector<int>& lost,
                                                           const std::vector<int>& unused) const {
  if (static_cast<int>(lost.size() + unused.size()) > parity_) {
    return absl::DataLossError(absl::StrCat(lost.size() + unused.size(), " of ", data_ + parity_,
                                            " files are lost, and parity makes up for ", parity_));
  }
  Decoder decoder;
  decoder.lost_ = static_cast<int>(lost.size());
  const auto names = [](const std::vector<int>& runs, int run) {
    return std::find(runs.begin(), runs.end(), run) != runs.end();
  };
  // Data runs come first, so the decoder reads as few parity runs as possible.
  for (int run = 0; run < data_ + parity_ && static_cast<int>(decoder.present_.size()) < data_; ++run) {
    if (!names(lost, run) && !names(unused, run)) decoder.present_.push_back(run);
  }
  // With M the rows of the present runs and L the rows of the lost ones: present = M * data, so data = M^-1 * present,
  // and lost = L * M^-1 * present. The product L * M^-1 is computed once, so that Decode makes lost parity in one pass
  // too, without rebuilding data that is not lost.
  std::vector<uint8_t> rows;
  for (const int run : decoder.present_) {
    rows.insert(rows.end(), matrix_.begin() + run * data_, matrix_.begin() + (run + 1) * data_);
  }
  std::vector<uint8_t> inverse(rows.size());
  Check(gf_invert_matrix(rows.data(), inverse.data(), data_) == 0, "a Cauchy matrix has an inverse");
  decoder.tables_.resize(kTableBytes * data_ * lost.size());
  if (lost.empty()) return decoder;
  // The product of the lost runs' rows and the inverse: coding the rows of the inverse as data. (ISA-L's gf_mul is also
  // the name of a function of OpenSSL, which a static program has.)
  const auto count = static_cast<int>(lost.size());
  std::vector<uint8_t> coefficients, wanted(lost.size() * data_);
  for (const int run : lost) {
    coefficients.insert(coefficients.end(), matrix_.begin() + run * data_, matrix_.begin() + (run + 1) * data_);
  }
  std::vector<uint8_t*> from, to;
  for (int k = 0; k < data_; ++k) from.push_back(inverse.data() + k * data_);
  for (int i = 0; i < count; ++i) to.push_back(wanted.data() + i * data_);
  ec_init_tables(data_, count, coefficients.data(), decoder.tables_.data());
  ec_encode_data(data_, data_, count, decoder.tables_.data(), from.data(), to.data());
  ec_init_tables(data_, count, wanted.data(), decoder.tables_.data());
  return decoder;
}

void ParityCode::Decoder::Decode(const std::vector<const std::byte*>& present, const std::vector<std::byte*>& lost,
                                 int64_t nbytes) const {
  Check(static_cast<int>(lost.size()) == lost_, "a decoder is for as many lost runs as it was made for");
  if (lost_ > 0) Apply(tables_, present, lost, nbytes);
}

}  // namespace fsdp
