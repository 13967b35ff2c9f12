// SPDX-License-Identifier: Apache-2.0
//
// TokenData: the tokens that a run trains on, and the tokens of sample i. Raw token files (little-endian uint16, or
// uint32 in a .u32 file) are mapped into memory; text files become one sequence of byte-level tokens, in the order of
// their names. Read-only, so any number of threads may use it. Copies share the memory.
#ifndef FSDP_TRAIN_TOKEN_DATA_H_
#define FSDP_TRAIN_TOKEN_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

class TokenData {
 public:
  // kNotFound / kInvalidArgument when the file cannot be read or is not a whole number of tokens.
  static absl::StatusOr<TokenData> FromTokenFile(const std::string& path);

  // Every file that `pattern` (as in a shell) matches, sorted by name; kNotFound if no file matches.
  static absl::StatusOr<TokenData> FromTextFiles(const std::string& pattern);

  // `size` tokens, all 0, which are of no file.
  static TokenData Zeros(int64_t size);

  // Number of tokens, N.
  int64_t size() const { return size_; }

  // The path or the pattern that was read, for messages.
  const std::string& origin() const { return origin_; }

  // The tokens as in memory, token_bytes() each, little-endian; valid while any copy of this lives.
  std::string_view bytes() const;
  int token_bytes() const { return token_bytes_; }

  // The files that were read.
  const std::vector<std::string>& files() const { return files_; }

  // The token at `index`. Precondition: 0 <= index < size().
  uint32_t at(int64_t index) const;

  // The start of sample `index` of `seq_len` tokens: (index * seq_len) mod (N - seq_len). Precondition: N > seq_len.
  int64_t SampleStart(int64_t index, int64_t seq_len) const;

  // tokens = seq_len tokens of sample `index`, targets = the same range shifted by one. The spans have seq_len
  // elements.
  void CopySample(int64_t index, absl::Span<int32_t> tokens, absl::Span<int32_t> targets) const;

  // kInvalidArgument when there are too few tokens for a sample of `seq_len`.
  absl::Status CheckLength(int64_t seq_len) const;

  // kInvalidArgument, naming the first token of `range` that is not below `vocab_size`, its place and the vocabulary.
  absl::Status CheckVocabulary(int64_t vocab_size, const Interval& range) const;

 private:
  TokenData(std::shared_ptr<const void> bytes, int64_t nbytes, int token_bytes, std::string origin,
            std::vector<std::string> files);

  std::shared_ptr<const void> bytes_;
  int64_t size_ = 0;
  int token_bytes_ = 1;  // 1, 2 or 4
  std::string origin_;
  std::vector<std::string> files_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TOKEN_DATA_H_
