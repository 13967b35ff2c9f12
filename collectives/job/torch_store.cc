// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/torch_store.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

// The first byte of a request.
enum class TorchRequest : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kWait = 6 };

constexpr uint32_t kValidationNumber = 0x3C85F7CE;
constexpr char kKeyIsSet = 0;  // the reply to wait

template <typename Integer>
void AppendInteger(std::string& bytes, Integer value) {
  static_assert(std::endian::native == std::endian::little);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(std::string& bytes, std::string_view text) {
  AppendInteger<uint64_t>(bytes, text.size());
  bytes.append(text);
}

std::string BeginRequest(TorchRequest request) { return std::string(1, static_cast<char>(request)); }

}  // namespace

absl::StatusOr<TorchStore> TorchStore::Connect(const std::string& host, int port, absl::Time deadline) {
  FSDP_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectTcp(host, port, deadline));
  std::string request = BeginRequest(TorchRequest::kValidate);
  AppendInteger(request, kValidationNumber);
  FSDP_RETURN_IF_ERROR(SendAll(socket.get(), request, deadline));
  return TorchStore(std::move(socket));
}

absl::Status TorchStore::Set(std::string_view key, std::string_view value, absl::Time deadline) {
  std::string request = BeginRequest(TorchRequest::kSet);
  AppendText(request, key);
  AppendText(request, value);
  return SendAll(socket_.get(), request, deadline);
}

// The get is sent only after the reply to the wait: for a key that is not set, the server replies an empty value or
// ends the connection, depending on its version.
absl::StatusOr<std::string> TorchStore::Get(std::string_view key, absl::Time deadline) {
  std::string wait = BeginRequest(TorchRequest::kWait);
  AppendInteger<uint64_t>(wait, 1);
  AppendText(wait, key);
  FSDP_RETURN_IF_ERROR(SendAll(socket_.get(), wait, deadline));
  char reply = 0;
  FSDP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), absl::MakeSpan(&reply, 1), deadline));
  if (reply != kKeyIsSet) {
    return absl::DataLossError(absl::StrCat("TCPStore replied ", static_cast<int>(static_cast<uint8_t>(reply)),
                                            " to a wait, expected 0: is it torchrun's?"));
  }
  std::string get = BeginRequest(TorchRequest::kGet);
  AppendText(get, key);
  FSDP_RETURN_IF_ERROR(SendAll(socket_.get(), get, deadline));
  char prefix[sizeof(uint64_t)];
  FSDP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), absl::MakeSpan(prefix), deadline));
  uint64_t size = 0;
  std::memcpy(&size, prefix, sizeof(size));
  if (size > kMaxTorchValueBytes) {
    return absl::DataLossError(absl::StrCat("TCPStore replied a value of ", size, " bytes, expected at most ",
                                            kMaxTorchValueBytes, ": is it torchrun's?"));
  }
  std::string value(size, '\0');
  FSDP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), absl::MakeSpan(value), deadline));
  return value;
}

}  // namespace fsdp
