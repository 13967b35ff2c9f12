// SPDX-License-Identifier: Apache-2.0
//
// Hosts: several hosts on one machine, for tests, without root and inside Bazel's sandbox. Each host has a network, a
// name, process numbers, System V objects and mounts of its own (namespaces(7)), so that abstract sockets and shared
// memory do not reach across, and HostIdentity tells them apart. A switch joins them all:
//
//   host-a 10.77.0.1 ---+
//   host-b 10.77.0.2 ---+--- bridge, in the namespace of the test
//
// Their cables can be given a rate, a delay and loss (wire.h).
//
// Each host knows the others by name and, as on Debian, itself as 127.0.1.1 (/etc/hosts).
//
// The test itself runs as root of a user namespace, on its own machine: link :hosts_main in place of gtest_main, which
// starts the test there. Everything made there vanishes with the test's process, however it ends.
//
// Used by one thread.
#ifndef FSDP_TESTS_HOSTS_HOSTS_H_
#define FSDP_TESTS_HOSTS_HOSTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/child_process.h"
#include "fsdp/tests/hosts/wire.h"

namespace fsdp {

class Hosts {
 public:
  // Why hosts are not possible here, to skip a test with; empty if they are.
  static std::string WhyNot(const Link& link = {});

  // Makes `count` hosts, 1 to 26. At most one Hosts at a time. Errors carry the message of ip(8) or tc(8).
  static absl::StatusOr<std::unique_ptr<Hosts>> Create(int count, const Link& link = {});
  ~Hosts();

  int count() const { return static_cast<int>(inits_.size()); }
  static std::string Name(int host) { return std::string("host-") + static_cast<char>('a' + host); }
  static std::string Address(int host);

  // Starts a program on a host. It has process numbers of the host; the ChildProcess is nsenter(1), which ends as the
  // program does.
  absl::StatusOr<std::unique_ptr<ChildProcess>> Start(int host, const std::vector<std::string>& command,
                                                      const ChildOptions& options = {}) const;

  // Kills a process of a host, by its number there, as kill -9 does.
  absl::Status KillProcess(int host, int pid) const;

  // Takes a host off the switch, and puts it back: meanwhile no packet arrives, without any error or signal.
  absl::Status CutLink(int host) const;
  absl::Status RestoreLink(int host) const;

  // Ends all processes of a host immediately.
  void Kill(int host);

 private:
  explicit Hosts(const Link& link) : link_(link) {}

  // The host's eth0, and a cable from it to the switch.
  absl::Status Connect(int host);
  absl::Status LayCable(int host);
  // Gives a host its /etc/hosts; `count` is the number of hosts.
  absl::Status NameHosts(int host, int count) const;

  const Link link_;
  std::vector<std::unique_ptr<Wire>> wires_;  // by host, if the link needs them

  // By host: its first process, which holds the namespaces; -1 once it was killed.
  std::vector<int> inits_;
};

}  // namespace fsdp

#endif  // FSDP_TESTS_HOSTS_HOSTS_H_
