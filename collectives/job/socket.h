// SPDX-License-Identifier: Apache-2.0
//
// Stream sockets with deadlines: TCP, and local sockets with an abstract name (unix(7)), which exist as long as a
// process listens and leave nothing in the file system. For the store's small messages. All sockets are non-blocking.
#ifndef FSDP_COLLECTIVES_JOB_SOCKET_H_
#define FSDP_COLLECTIVES_JOB_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

// Listens on `host`, a name or an address of this machine; port 0 takes any free one. kUnavailable if the port is in
// use.
absl::StatusOr<FileDescriptor> ListenTcp(const std::string& host, int port);

// ListenTcp for a job on several hosts. Listens on all interfaces if `host` is a loopback address here, or not an
// address of this machine, as behind a service's virtual address: other hosts then reach this machine by an address
// that it cannot know.
absl::StatusOr<FileDescriptor> ListenTcpForHosts(const std::string& host, int port);

// Listens under a name of at most 100 bytes. Only processes of this user may connect: see SameUser.
absl::StatusOr<FileDescriptor> ListenLocal(const std::string& name);

// The port that a TCP socket is bound to; kInvalidArgument if `fd` is not a TCP socket that listens.
absl::StatusOr<int> ListeningPort(int fd);

// The numeric address of this end of a TCP socket, connected or listening. IPv4 addresses have the dotted form.
// kInvalidArgument if `fd` is not a TCP socket.
absl::StatusOr<std::string> LocalAddressOf(int fd);

// Whether a numeric address means all interfaces.
bool IsAnyAddress(const std::string& address);

// kUnavailable if no process listens there, kDeadlineExceeded if the host does not answer. ConnectLocal does not block.
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, int port, absl::Time deadline);
absl::StatusOr<FileDescriptor> ConnectLocal(const std::string& name);

// For a TCP connection that stays open: notices a host that is gone within about 11 seconds, whether the connection is
// idle (keep-alive) or has sent bytes that the other end does not acknowledge (TCP_USER_TIMEOUT). The connection then
// ends with an error that IsSilence recognises. ConnectTcp calls it. No effect on local sockets.
void EndWhenSilent(int fd);

// Whether `error`, an errno of recv or send, means that the other end does not answer, and not that it is gone.
bool IsSilence(int error);

// True if the process at the other end of a local socket belongs to this user. Always true for TCP, which does not give
// the user.
bool SameUser(int fd);

// Transfer all of the bytes. kUnavailable if the other end is gone, kDeadlineExceeded; some bytes may then have been
// transferred.
absl::Status SendAll(int fd, absl::Span<const char> bytes, absl::Time deadline);
absl::Status ReceiveAll(int fd, absl::Span<char> bytes, absl::Time deadline);

// Milliseconds until `deadline` as poll() takes them: rounded up, 0 when it is past, -1 when it is infinite.
int PollTimeout(absl::Time deadline);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_SOCKET_H_
