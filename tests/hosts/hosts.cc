// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tests/hosts/hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tests/hosts/own_machine.h"

namespace fsdp {
namespace {

constexpr char kSwitch[] = "switch";

// The limit for a program such as ip(8), which ends within milliseconds if the machine is idle.
constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status Do(const std::vector<std::string>& command) {
  FSDP_ASSIGN_OR_RETURN(const ProgramResult result, RunProgram(command, kPatience));
  return result.exit_status == 0
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat(absl::StrJoin(command, " "), ": ", result.output));
}

// The end of the cable at the switch.
std::string PortOf(int host) { return absl::StrCat("port-", Hosts::Name(host)); }

// The first process of a host: sets it up, reports the result, and then only waits for the processes that it inherits.
// Runs between fork and exec of a process that may have threads, so it makes only system calls.
[[noreturn]] void BeInit(const char* name, size_t name_size, int ready) {
  // The host must not outlive the test, however the test ends.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char error = 0;
  if (sethostname(name, name_size) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    error = static_cast<char>(errno);
  }
  // UCX finds the interfaces in /sys. If it may not be mounted, as in some containers, the /sys that is there is likely
  // to have eth0.
  mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  const ssize_t told = write(ready, &error, 1);
  if (told != 1 || error != 0) _exit(1);
  signal(SIGCHLD, SIG_IGN);  // the kernel then reaps them
  while (true) pause();
}

absl::StatusOr<int> StartInit(int host) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("no descriptor left");
  const FileDescriptor reader(pipe_ends[0]);
  FileDescriptor writer(pipe_ends[1]);
  const std::string name = Hosts::Name(host);
  constexpr unsigned long kAll = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | SIGCHLD;
  const long pid = syscall(SYS_clone, kAll, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) BeInit(name.data(), name.size(), writer.get());
  if (pid < 0) return absl::UnavailableError(absl::StrCat(name, ": clone: ", std::strerror(errno)));
  // Closes this end, so that the read ends if the child dies before it writes.
  writer.Close();
  char error = 0;
  if (read(reader.get(), &error, 1) != 1 || error != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": cannot be set up: ", std::strerror(error)));
  }
  return static_cast<int>(pid);
}

}  // namespace

std::string Hosts::WhyNot(const Link& link) {
  std::string reason = WhyNoOwnMachine();
  return reason.empty() && link.needs_wire() ? Wire::WhyNot() : reason;
}

std::string Hosts::Address(int host) { return absl::StrCat("10.77.0.", host + 1); }

absl::StatusOr<std::unique_ptr<Hosts>> Hosts::Create(int count, const Link& link) {
  std::unique_ptr<Hosts> hosts(new Hosts(link));
  FSDP_RETURN_IF_ERROR(Do({"ip", "link", "add", kSwitch, "type", "bridge"}));
  FSDP_RETURN_IF_ERROR(Do({"ip", "link", "set", kSwitch, "up"}));
  for (int host = 0; host < count; ++host) {
    FSDP_ASSIGN_OR_RETURN(const int init, StartInit(host));
    hosts->inits_.push_back(init);
    FSDP_RETURN_IF_ERROR(hosts->Connect(host));
    FSDP_RETURN_IF_ERROR(hosts->NameHosts(host, count));
  }
  return hosts;
}

absl::Status Hosts::LayCable(int host) {
  const std::string port = PortOf(host);
  if (!link_.needs_wire()) {
    return Do({"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", absl::StrCat(inits_[host])});
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Wire> wire, Wire::Create(inits_[host], "eth0", port, link_));
  wires_.push_back(std::move(wire));
  return absl::OkStatus();
}

absl::Status Hosts::Connect(int host) {
  const std::string port = PortOf(host);
  FSDP_RETURN_IF_ERROR(LayCable(host));
  FSDP_RETURN_IF_ERROR(Do({"ip", "link", "set", port, "master", kSwitch, "up"}));
  const auto inside = [&](std::vector<std::string> command) {
    command.insert(command.begin(), {"nsenter", "--target", absl::StrCat(inits_[host]), "--net"});
    return Do(command);
  };
  FSDP_RETURN_IF_ERROR(inside({"ip", "link", "set", "lo", "up"}));
  FSDP_RETURN_IF_ERROR(inside({"ip", "addr", "add", absl::StrCat(Address(host), "/24"), "dev", "eth0"}));
  FSDP_RETURN_IF_ERROR(inside({"ip", "link", "set", "eth0", "up"}));
  // A Wire limits the rate by itself.
  if (link_.mbit == 0 || link_.needs_wire()) return absl::OkStatus();
  // Each end shapes the packets it sends. A burst of 4 ms, and at least one packet as TCP passes it on.
  const auto shape = [&](const std::string& device) -> std::vector<std::string> {
    return {"tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            absl::StrCat(link_.mbit, "mbit"),
            "burst",
            absl::StrCat(std::max(64 << 10, link_.mbit * 500)),
            "latency",
            "20ms"};
  };
  FSDP_RETURN_IF_ERROR(Do(shape(port)));
  return inside(shape("eth0"));
}

// A shell on the host writes the file, in a file system that only this host sees.
absl::Status Hosts::NameHosts(int host, int count) const {
  std::string lines = "127.0.0.1 localhost\n";
  for (int other = 0; other < count; ++other) {
    absl::StrAppend(&lines, other == host ? "127.0.1.1" : Address(other), " ", Name(other), "\n");
  }
  return Do({"nsenter", "--target", absl::StrCat(inits_[host]), "--mount", "sh", "-c",
             absl::StrCat("mount -t tmpfs hosts /mnt && printf %s '", lines,
                          "' > /mnt/hosts && mount --bind /mnt/hosts /etc/hosts && umount /mnt")});
}

// The kernel removes the interfaces of a host with its namespace, some time later. The switch must be gone when the
// next Hosts makes its own, so all are deleted here.
Hosts::~Hosts() {
  for (int host = 0; host < count(); ++host) {
    Do({"ip", "link", "del", PortOf(host)}).IgnoreError();
    Kill(host);
  }
  Do({"ip", "link", "del", kSwitch}).IgnoreError();
}

absl::StatusOr<std::unique_ptr<ChildProcess>> Hosts::Start(int host, const std::vector<std::string>& command,
                                                           const ChildOptions& options) const {
  std::vector<std::string> all = {
      // All namespaces except the user's, in which the test is root already.
      "nsenter", "--target", absl::StrCat(inits_[host]), "--net", "--mount", "--pid", "--uts", "--ipc", "--"};
  all.insert(all.end(), command.begin(), command.end());
  return ChildProcess::Start(all, options);
}

absl::Status Hosts::KillProcess(int host, int pid) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> kill,
                        Start(host, {"sh", "-c", absl::StrCat("kill -9 ", pid)}));
  FSDP_ASSIGN_OR_RETURN(const int status, kill->Wait(kPatience));
  return status == 0 ? absl::OkStatus() : absl::NotFoundError(kill->output());
}

absl::Status Hosts::CutLink(int host) const { return Do({"ip", "link", "set", PortOf(host), "nomaster"}); }

absl::Status Hosts::RestoreLink(int host) const { return Do({"ip", "link", "set", PortOf(host), "master", kSwitch}); }

void Hosts::Kill(int host) {
  if (inits_[host] < 0) return;
  kill(inits_[host], SIGKILL);
  // Its death ends all processes of its namespace, and it ends only after them.
  waitpid(inits_[host], nullptr, 0);
  inits_[host] = -1;
}

}  // namespace fsdp
