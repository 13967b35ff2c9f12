// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/store_frame.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr uint32_t kMagic = 0x70647366;  // "fsdp" in little-endian order

// Copied to and from the wire unchanged: the order of the members leaves no padding.
struct Header {
  uint32_t magic;
  uint32_t kind;
  uint32_t key_bytes;
  uint32_t value_bytes;
  int64_t number;
};
static_assert(sizeof(Header) == kStoreHeaderBytes && std::endian::native == std::endian::little);

Header HeaderOf(std::string_view bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

}  // namespace

std::string EncodeStoreFrame(const StoreFrame& frame) {
  const Header header = {.magic = kMagic,
                         .kind = frame.kind,
                         .key_bytes = static_cast<uint32_t>(frame.key.size()),
                         .value_bytes = static_cast<uint32_t>(frame.value.size()),
                         .number = frame.number};
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&header), sizeof(header)), frame.key, frame.value);
}

absl::StatusOr<size_t> StoreBodyBytes(std::string_view bytes, size_t max_value_bytes) {
  const Header header = HeaderOf(bytes);
  if (header.magic != kMagic) {
    return absl::InvalidArgumentError("this is not a store's message");
  }
  if (header.key_bytes > kMaxStoreKeyBytes || header.value_bytes > max_value_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("store key of ", header.key_bytes, " bytes and value of ",
                                                   header.value_bytes, ", at most ", kMaxStoreKeyBytes, " and ",
                                                   max_value_bytes));
  }
  return size_t{header.key_bytes} + header.value_bytes;
}

absl::StatusOr<std::optional<StoreFrame>> TakeStoreFrame(std::string& buffer, size_t max_value_bytes) {
  if (buffer.size() < kStoreHeaderBytes) {
    return std::nullopt;
  }
  FSDP_ASSIGN_OR_RETURN(const size_t body_bytes, StoreBodyBytes(buffer, max_value_bytes));
  if (buffer.size() < kStoreHeaderBytes + body_bytes) {
    return std::nullopt;
  }
  const Header header = HeaderOf(buffer);
  StoreFrame frame = {.kind = header.kind, .number = header.number};
  frame.key = buffer.substr(kStoreHeaderBytes, header.key_bytes);
  frame.value = buffer.substr(kStoreHeaderBytes + header.key_bytes, header.value_bytes);
  buffer.erase(0, kStoreHeaderBytes + body_bytes);
  return frame;
}

}  // namespace fsdp
