// SPDX-License-Identifier: Apache-2.0
//
// Wire: a cable with delay, loss and rate between a host and the switch of hosts.h, for a kernel without netem. A
// thread carries the frames between two TAP devices, one at each end. Needs /dev/net/tun.
#ifndef FSDP_TESTS_HOSTS_WIRE_H_
#define FSDP_TESTS_HOSTS_WIRE_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

// The properties of each host's cable. A packet from one host to another crosses two cables: it has the rate of both,
// and is delayed and lost only on the first. So RTT is twice `delay`.
struct Link {
  int mbit = 0;                                 // per second and direction; 0: unlimited
  absl::Duration delay = absl::ZeroDuration();  // of each packet
  double loss = 0;                              // the probability that a packet is lost: 0.01 is 1 %

  // Only delay and loss need a Wire, the rate does not.
  bool needs_wire() const { return delay > absl::ZeroDuration() || loss > 0; }
};

class Wire {
 public:
  // Why a Wire is not possible here; empty if it is.
  static std::string WhyNot();

  // Makes the device `inside` in the network of process `pid`, and `outside` in this one. Neither is up.
  static absl::StatusOr<std::unique_ptr<Wire>> Create(int pid, const std::string& inside, const std::string& outside,
                                                      const Link& link);

  // Ends the thread; the devices vanish.
  ~Wire();

 private:
  Wire(const Link& link, FileDescriptor host, FileDescriptor hub, FileDescriptor stop);

  void Carry();

  const Link link_;
  const FileDescriptor host_;
  const FileDescriptor hub_;
  const FileDescriptor stop_;  // readable once the thread is to end
  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_TESTS_HOSTS_WIRE_H_
