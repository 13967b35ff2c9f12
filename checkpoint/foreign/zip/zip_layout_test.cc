// SPDX-License-Identifier: Apache-2.0
//
// Archives beyond 4 GiB, whose payload is a hole: the reader must find exactly the layout.
#include "fsdp/checkpoint/foreign/zip/zip_layout.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/storage/write_queue.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Texts at their offsets, and zeros between.
class SparseFile final : public File {
 public:
  SparseFile(std::map<int64_t, std::string> texts, int64_t nbytes) : texts_(std::move(texts)), nbytes_(nbytes) {}

  const std::string& path() const override { return path_; }
  absl::StatusOr<int64_t> Size() const override { return nbytes_; }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    std::memset(out.data(), 0, out.size());
    const int64_t end = offset + static_cast<int64_t>(out.size());
    auto next = texts_.upper_bound(offset);
    if (next != texts_.begin()) --next;  // it may reach to here
    for (; next != texts_.end() && next->first < end; ++next) {
      const auto& [at, text] = *next;
      const int64_t from = std::max(at, offset);
      const int64_t to = std::min(at + static_cast<int64_t>(text.size()), end);
      if (from < to) std::memcpy(out.data() + (from - offset), text.data() + (from - at), to - from);
    }
    return absl::OkStatus();
  }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override { return absl::UnimplementedError("read only"); }
  absl::Status Reserve(int64_t) override { return absl::UnimplementedError("read only"); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int) override { return nullptr; }
  absl::Status Sync() override { return absl::OkStatus(); }
  bool locked() const override { return false; }

 private:
  const std::string path_ = "sparse";
  const std::map<int64_t, std::string> texts_;
  const int64_t nbytes_;
};

// Reads back an archive of entries of these sizes.
void ExpectFound(const std::vector<int64_t>& sizes) {
  std::vector<ZipLayout::Member> members;
  for (size_t i = 0; i < sizes.size(); ++i) members.push_back({absl::StrCat("archive/data/", i), sizes[i]});
  const ZipLayout layout(members);
  std::map<int64_t, std::string> texts;
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < sizes.size(); ++i) {
    crcs.push_back(static_cast<uint32_t>(1000 + i));
    texts[layout.header_offset(i)] = layout.LocalHeader(i, crcs[i]);
    EXPECT_EQ(layout.header_offset(i) + static_cast<int64_t>(texts[layout.header_offset(i)].size()),
              layout.payload_offset(i));
    EXPECT_EQ(layout.payload_offset(i) % 64, 0);
  }
  texts[layout.directory_offset()] = layout.Directory(crcs);
  EXPECT_EQ(layout.directory_offset() + static_cast<int64_t>(texts[layout.directory_offset()].size()), layout.nbytes());
  const SparseFile file(std::move(texts), layout.nbytes());
  ASSERT_OK_AND_ASSIGN(const std::vector<ZipEntry> entries, ReadZipDirectory({&file, 0, layout.nbytes()}));
  ASSERT_EQ(entries.size(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(entries[i].name, members[i].name);
    EXPECT_EQ(entries[i].nbytes, sizes[i]);
    EXPECT_EQ(entries[i].stored_bytes, sizes[i]);
    EXPECT_EQ(entries[i].payload_offset, layout.payload_offset(i));
    EXPECT_EQ(entries[i].crc, crcs[i]);
  }
}

TEST(ZipLayoutTest, SmallEntriesAreFound) { ExpectFound({0, 1, 63, 64, 65, 100'000}); }

TEST(ZipLayoutTest, AnEntryBeyondFourGibHasItsSizesInZip64) { ExpectFound({10, 5 * kGiB, 3}); }

TEST(ZipLayoutTest, EntriesBehindFourGibHaveTheirOffsetsInZip64) { ExpectFound({3 * kGiB, 2 * kGiB, 7, 0, 6 * kGiB}); }

// All ones in 32 bits mean "see zip64", so a size of exactly that value needs zip64 as well.
TEST(ZipLayoutTest, TheBoundaryIsZip64Too) {
  const int64_t limit = kZipMax32;
  ExpectFound({limit - 1, 1, 1});
  ExpectFound({limit, 1, 1});
  ExpectFound({limit + 1, 1});
  ExpectFound({limit - 200, 1, 1, 1});
}

TEST(ZipLayoutTest, ManyEntriesAreCountedInZip64) { ExpectFound(std::vector<int64_t>(70'000, 1)); }

}  // namespace
}  // namespace fsdp
