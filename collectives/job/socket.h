// SPDX-License-Identifier: Apache-2.0
//
// Stream sockets with deadlines: TCP, and local sockets with an abstract name, which exist as long as somebody listens
// and leave nothing in the file system. For the store's small messages.
#ifndef FSDP_COLLECTIVES_JOB_SOCKET_H_
#define FSDP_COLLECTIVES_JOB_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

// Listens on `host`, a name or an address of this machine; port 0 is any free one. kUnavailable when it is taken.
absl::StatusOr<FileDescriptor> ListenTcp(const std::string& host, int port);

// Listens under a name of at most 100 bytes. Only processes of this user may connect: see SameUser.
absl::StatusOr<FileDescriptor> ListenLocal(const std::string& name);

// The port that a TCP socket is bound to; kInvalidArgument when `fd` is not a TCP socket that listens.
absl::StatusOr<int> ListeningPort(int fd);

// kUnavailable when nobody listens there, kDeadlineExceeded when nobody answers.
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, int port, absl::Time deadline);
absl::StatusOr<FileDescriptor> ConnectLocal(const std::string& name);

// Whether the process at the other end of a local socket belongs to this user; true for TCP, where nobody knows.
bool SameUser(int fd);

// All of the bytes, or an error: kUnavailable when the other end is gone, kDeadlineExceeded.
absl::Status SendAll(int fd, absl::Span<const char> bytes, absl::Time deadline);
absl::Status ReceiveAll(int fd, absl::Span<char> bytes, absl::Time deadline);

// Milliseconds until `deadline` as poll() takes them: rounded up, 0 when it is past, -1 when it is infinite.
int PollTimeout(absl::Time deadline);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_SOCKET_H_
