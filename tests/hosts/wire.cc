// SPDX-License-Identifier: Apache-2.0
//
// A frame that is read at one end leaves at the other after its time on the wire (its bytes at the rate, one frame
// after the other) and the delay. Frames that would wait longer than kQueue for the wire are dropped, as by a switch
// with a full queue. Delays are equal, so the frames of a direction stay in order.
#include "fsdp/tests/hosts/wire.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr char kTun[] = "/dev/net/tun";

constexpr absl::Duration kQueue = absl::Milliseconds(500);

// The most frames to read from one end before the other gets its turn.
constexpr int kBatch = 64;

absl::StatusOr<FileDescriptor> OpenTap(const std::string& name) {
  FileDescriptor tap(open(kTun, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request = {};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (tap.get() < 0 || ioctl(tap.get(), TUNSETIFF, &request) != 0) {
    return absl::UnavailableError(absl::StrCat(kTun, ": ", name, ": ", std::strerror(errno)));
  }
  return tap;
}

// In a thread of its own, because setns changes the network of the calling thread.
absl::StatusOr<FileDescriptor> OpenTapIn(int pid, const std::string& name) {
  absl::StatusOr<FileDescriptor> tap = absl::UnavailableError("not opened");
  std::thread([&] {
    const FileDescriptor network(open(absl::StrCat("/proc/", pid, "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    if (setns(network.get(), CLONE_NEWNET) == 0) {
      tap = OpenTap(name);
    } else {
      tap = absl::UnavailableError(absl::StrCat("the network of process ", pid, ": ", std::strerror(errno)));
    }
  }).join();
  return tap;
}

// One way through the wire.
class Lane {
 public:
  Lane(int from, int to, int mbit) : from_(from), to_(to), mbit_(mbit) {}

  // Takes the frames that have come, except those for which `is_lost` returns true.
  template <typename IsLost>
  void Take(absl::Duration delay, const IsLost& is_lost) {
    std::array<char, 1 << 16> frame;
    for (int i = 0; i < kBatch; ++i) {
      const ssize_t nbytes = read(from_, frame.data(), frame.size());
      if (nbytes <= 0) return;
      if (is_lost()) continue;
      const absl::Time now = absl::Now();
      const absl::Duration on_wire = mbit_ == 0 ? absl::ZeroDuration() : absl::Microseconds(nbytes * 8.0 / mbit_);
      const absl::Time free = std::max(free_, now) + on_wire;
      if (free - now > kQueue) continue;
      free_ = free;
      frames_.push_back({free + delay, std::vector<char>(frame.data(), frame.data() + nbytes)});
    }
  }

  // Sends the frames that are due. A device that is down, or full, drops them.
  void LetOut() {
    while (!frames_.empty() && frames_.front().due <= absl::Now()) {
      [[maybe_unused]] const ssize_t written = write(to_, frames_.front().bytes.data(), frames_.front().bytes.size());
      frames_.pop_front();
    }
  }

  absl::Time next() const { return frames_.empty() ? absl::InfiniteFuture() : frames_.front().due; }

 private:
  struct Frame {
    absl::Time due;
    std::vector<char> bytes;
  };

  const int from_;
  const int to_;
  const int mbit_;
  absl::Time free_ = absl::InfinitePast();  // when the wire has carried all frames taken so far
  std::deque<Frame> frames_;                // by due time
};

}  // namespace

std::string Wire::WhyNot() {
  const FileDescriptor tun(open(kTun, O_RDWR | O_CLOEXEC));
  return tun.get() >= 0 ? "" : absl::StrCat(kTun, ": ", std::strerror(errno));
}

absl::StatusOr<std::unique_ptr<Wire>> Wire::Create(int pid, const std::string& inside, const std::string& outside,
                                                   const Link& link) {
  FSDP_ASSIGN_OR_RETURN(FileDescriptor host, OpenTapIn(pid, inside));
  FSDP_ASSIGN_OR_RETURN(FileDescriptor hub, OpenTap(outside));
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (stop.get() < 0) return absl::ResourceExhaustedError("no descriptor is left for an eventfd");
  return std::unique_ptr<Wire>(new Wire(link, std::move(host), std::move(hub), std::move(stop)));
}

Wire::Wire(const Link& link, FileDescriptor host, FileDescriptor hub, FileDescriptor stop)
    : link_(link), host_(std::move(host)), hub_(std::move(hub)), stop_(std::move(stop)), thread_([this] { Carry(); }) {}

Wire::~Wire() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void Wire::Carry() {
  std::mt19937 random;  // without a seed: the same losses in every run
  std::bernoulli_distribution loses(link_.loss);
  Lane out(host_.get(), hub_.get(), link_.mbit);
  Lane in(hub_.get(), host_.get(), link_.mbit);
  while (true) {
    out.LetOut();
    in.LetOut();
    // At most a second: frames_ may be empty on both sides.
    const absl::Duration wait =
        std::clamp(std::min(out.next(), in.next()) - absl::Now(), absl::ZeroDuration(), absl::Seconds(1));
    const timespec timeout = absl::ToTimespec(wait);
    pollfd fds[] = {{.fd = host_.get(), .events = POLLIN, .revents = 0},
                    {.fd = hub_.get(), .events = POLLIN, .revents = 0},
                    {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    if (ppoll(fds, 3, &timeout, nullptr) < 0 && errno != EINTR) return;
    if (fds[2].revents != 0) return;
    // A packet crosses two wires, so only the way out of its host delays and loses it (see Link).
    if (fds[0].revents != 0) out.Take(link_.delay, [&] { return loses(random); });
    if (fds[1].revents != 0) in.Take(absl::ZeroDuration(), [] { return false; });
  }
}

}  // namespace fsdp
