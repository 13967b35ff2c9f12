// SPDX-License-Identifier: Apache-2.0
//
// Token files are mapped, not read: a run reads a small part of a large file, and ranks of one host share the page
// cache. Texts are read whole, since they are small and several files become one sequence. A token is 1, 2 or 4 bytes,
// assembled byte by byte, so the file is little-endian on every machine and needs no alignment.
#include "fsdp/train/token_data.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::Status FileError(const std::string& path, std::string_view what) {
  const std::string message = absl::StrFormat("%s: cannot %s: %s", path, what, std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
}

// The regular files among the matches, sorted by name.
absl::StatusOr<std::vector<std::string>> MatchFiles(const std::string& pattern) {
  glob_t matches = {};
  const auto release = absl::MakeCleanup([&matches] { globfree(&matches); });
  const int result = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &matches);
  if (result != 0 && result != GLOB_NOMATCH) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: cannot list the files that match", pattern));
  }
  std::vector<std::string> files;
  for (size_t i = 0; i < matches.gl_pathc; ++i) {
    struct stat info = {};
    if (stat(matches.gl_pathv[i], &info) == 0 && S_ISREG(info.st_mode)) files.emplace_back(matches.gl_pathv[i]);
  }
  if (files.empty()) return absl::NotFoundError(absl::StrFormat("%s: no file matches", pattern));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TokenData::TokenData(std::shared_ptr<const void> bytes, int64_t nbytes, int token_bytes, std::string origin,
                     std::vector<std::string> files)
    : bytes_(std::move(bytes)),
      size_(nbytes / token_bytes),
      token_bytes_(token_bytes),
      origin_(std::move(origin)),
      files_(std::move(files)) {}

// The mapping outlives the descriptor: the shared_ptr's deleter unmaps it once the last copy of the TokenData is gone.
absl::StatusOr<TokenData> TokenData::FromTokenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait for a writer
  if (fd < 0) return FileError(path, "open");
  const auto close_file = absl::MakeCleanup([fd] { close(fd); });
  struct stat info = {};
  if (fstat(fd, &info) != 0) return FileError(path, "read its size");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrFormat("%s: is not a regular file", path));
  const int token_bytes = absl::EndsWith(path, ".u32") ? 4 : 2;
  const int64_t nbytes = info.st_size;
  if (nbytes == 0 || nbytes % token_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: has %d bytes, expected a positive multiple of %d (uint%d tokens)", path, nbytes,
                        token_bytes, 8 * token_bytes));
  }
  void* address = mmap(nullptr, nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) return FileError(path, "map");
  std::shared_ptr<const void> bytes(address, [nbytes](const void* p) { munmap(const_cast<void*>(p), nbytes); });
  return TokenData(std::move(bytes), nbytes, token_bytes, path, {path});
}

absl::StatusOr<TokenData> TokenData::FromTextFiles(const std::string& pattern) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> files, MatchFiles(pattern));
  auto text = std::make_shared<std::string>();
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    std::ostringstream contents;
    contents << stream.rdbuf();
    if (!stream) return FileError(file, "read");
    text->append(contents.str());
  }
  if (text->empty()) return absl::InvalidArgumentError(absl::StrFormat("%s: the files that match are empty", pattern));
  const int64_t nbytes = static_cast<int64_t>(text->size());
  const void* data = text->data();
  // Shares ownership of the string, but points at its bytes: `bytes_` is the same type as for a mapping.
  return TokenData(std::shared_ptr<const void>(std::move(text), data), nbytes, 1, pattern, files);
}

TokenData TokenData::Zeros(int64_t size) {
  auto bytes = std::make_shared<std::string>(size, '\0');
  const void* data = bytes->data();
  return TokenData(std::shared_ptr<const void>(std::move(bytes), data), size, 1, "zeros", {});
}

std::string_view TokenData::bytes() const {
  return {static_cast<const char*>(bytes_.get()), static_cast<size_t>(size_ * token_bytes_)};
}

uint32_t TokenData::at(int64_t index) const {
  const auto* byte = static_cast<const unsigned char*>(bytes_.get()) + index * token_bytes_;
  uint32_t token = 0;
  for (int i = 0; i < token_bytes_; ++i) token |= static_cast<uint32_t>(byte[i]) << (8 * i);
  return token;
}

int64_t TokenData::SampleStart(int64_t index, int64_t seq_len) const {
  // The product may exceed 64 bits in a long run. The modulus is N - seq_len, not N, so that the sample and its last
  // target are within the tokens.
  const __int128 product = static_cast<__int128>(index) * seq_len;
  return static_cast<int64_t>(product % (size_ - seq_len));
}

void TokenData::CopySample(int64_t index, absl::Span<int32_t> tokens, absl::Span<int32_t> targets) const {
  const int64_t seq_len = static_cast<int64_t>(tokens.size());
  const int64_t start = SampleStart(index, seq_len);
  for (int64_t t = 0; t < seq_len; ++t) {
    tokens[t] = static_cast<int32_t>(at(start + t));
    targets[t] = static_cast<int32_t>(at(start + t + 1));
  }
}

absl::Status TokenData::CheckLength(int64_t seq_len) const {
  if (size_ > seq_len) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: has %d tokens, expected more than seq_len=%d", origin_, size_, seq_len));
}

absl::Status TokenData::CheckVocabulary(int64_t vocab_size, const Interval& range) const {
  // Tokens of so few bytes are always below the vocabulary: no byte needs to be read.
  if (vocab_size >= int64_t{1} << (8 * token_bytes_)) return absl::OkStatus();
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (at(i) < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: token %d at position %d of %d is beyond the vocabulary of %d", origin_, at(i), i, size_, vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
