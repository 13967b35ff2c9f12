// SPDX-License-Identifier: Apache-2.0
//
// WorkerPorts: the TCP ports at which UCX listens for one worker. UCX accepts every connection and keeps one that sends
// nothing for ever, so a thousand of them would take all descriptors of the process. So UCX is given a connection
// only when it has sent something, as a rank does when it connects. And the ranks of a group connect to each other only
// while they meet; after that the ports are closed:
//
//   WorkerPorts ports;      // notes the sockets that listen already, and sets descriptors aside
//   ...                     // UCX makes the worker
//   ports.Find(address);
//   ...                     // the ranks meet; IsConnecting is false on all of them
//   ports.StopAccepting();
//   ...                     // the worker advances
//   ports.Close();
//   ports.DropSilent();     // until it returns 0, while the worker advances
//   ports.FreeReserve();
//
// Connections of ranks are not affected. Needs no privileges. Not thread-safe.
#ifndef FSDP_COLLECTIVES_NET_WORKER_PORTS_H_
#define FSDP_COLLECTIVES_NET_WORKER_PORTS_H_

#include <dirent.h>
#include <sys/epoll.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class WorkerPorts {
 public:
  // Sets descriptors aside for the program's own work after the meeting, such as a save; fewer if few are left.
  WorkerPorts();

  // Finds the sockets that listen since the construction; from now on a connection that sends nothing takes no
  // descriptor. `address`: UCX's address of the worker, which has the ports; another thread's socket, whose port it has
  // not, is left out.
  void Find(std::string_view address);

  // Whether a connection from this process to a worker with one of these addresses is not known to be accepted. True
  // also while any other connection of the process has no answer yet, whose destination the kernel does not tell.
  bool IsConnecting(const std::vector<std::string>& addresses) const;

  // From now on UCX is not given further connections. Call it when IsConnecting is false on all ranks.
  void StopAccepting();

  // Closes the ports: connections that UCX has not accepted are reset, further ones refused. Call it when UCX has
  // handled those that it was given. A port that UCX does not watch by epoll(7) stays open.
  void Close();

  // After Close: ends accepted connections that never sent all first bytes of a rank, which makes UCX close them.
  // Returns how many it ended.
  int DropSilent() const;

  void FreeReserve() {
    reserve_.clear();
    descriptors_.reset();
  }

 private:
  struct Listener {
    int fd = -1;
    std::string place;  // address and port
    int epoll_fd = -1;  // UCX's set that it is in; -1 if it is in none
    epoll_event event = {};
  };

  void ForEachDescriptor(const std::function<void(int fd)>& function) const;

  std::unique_ptr<DIR, int (*)(DIR*)> descriptors_;  // /proc/self/fd, open because none may be left later
  std::vector<int> before_;                          // sockets that listened before
  std::vector<Listener> listeners_;                  // UCX's
  std::vector<FileDescriptor> reserve_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_WORKER_PORTS_H_
