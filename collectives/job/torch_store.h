// SPDX-License-Identifier: Apache-2.0
//
// TorchStore: a client of torch.distributed's TCPStore, which torchrun's agent serves at MASTER_ADDR:MASTER_PORT. It is
// used only by ranks on several hosts, to find the address of the job's own store (agent_store.h). The protocol is
// PyTorch's own and not documented; these requests were compared with torch 2.15. On the wire, little-endian, with str
// = u64 length and bytes:
//
//   validate   00 u32(0x3C85F7CE)       first on a connection; no reply
//   set        01 str(key) str(value)   no reply
//   get        03 str(key)              reply: str(value); the key must be set, so wait comes first
//   wait       06 u64(1) str(key)       reply: 00 once the key is set
//
// Used by one thread.
#ifndef FSDP_COLLECTIVES_JOB_TORCH_STORE_H_
#define FSDP_COLLECTIVES_JOB_TORCH_STORE_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

// The longest value that Get accepts; nothing is allocated for a longer one.
constexpr size_t kMaxTorchValueBytes = 4096;

class TorchStore {
 public:
  // Blocks until the server accepted the connection. kUnavailable if there is no listener, kDeadlineExceeded if the
  // host does not answer.
  static absl::StatusOr<TorchStore> Connect(const std::string& host, int port, absl::Time deadline);

  // Errors of Set and Get: kUnavailable if the server closed the connection, as it does for requests that it does not
  // understand; kDeadlineExceeded, after which the TorchStore is unusable.

  // Sets or replaces a value. The server does not confirm it; call Get to be sure.
  absl::Status Set(std::string_view key, std::string_view value, absl::Time deadline);

  // Blocks until the key is set, and returns its value. kDataLoss if the reply does not follow this protocol, or is
  // longer than kMaxTorchValueBytes.
  absl::StatusOr<std::string> Get(std::string_view key, absl::Time deadline);

  // The connected socket; owned by this.
  int fd() const { return socket_.get(); }

 private:
  explicit TorchStore(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_TORCH_STORE_H_
