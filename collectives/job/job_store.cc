// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/job_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/agent_store.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

// The pause between two tries to bind or connect; rank 0 may start seconds later.
constexpr absl::Duration kRetry = absl::Milliseconds(10);

// The pause if each try queries torchrun's agent, and the longest wait for the agent's answer.
constexpr absl::Duration kAgentRetry = absl::Milliseconds(100);
constexpr absl::Duration kAgentAnswer = absl::Seconds(1);

// The longest that a rank waits for the store of another process of its own job to disappear: after a restart, the
// processes of the earlier run may still be ending.
constexpr absl::Duration kFormerLife = absl::Seconds(2);

// The shortest time that the holder of a port gets to identify itself. A store replies within microseconds, unless its
// process does not get a core.
constexpr absl::Duration kQuestion = absl::Milliseconds(500);

// How long rank 0 continues to serve after it has failed.
constexpr absl::Duration kLinger = absl::Seconds(1);

// "rank 1 of 4: rendezvous"
std::string Prefix(const Rendezvous& r) { return absl::StrCat("rank ", r.rank, " of ", r.world_size, ": rendezvous"); }

// Takes over the descriptor that the launcher passed, if it listens on MASTER_PORT. A grandchild of the launcher may
// have inherited the variable without the descriptor, whose number may then belong to any other file.
absl::StatusOr<FileDescriptor> AdoptListener(const Rendezvous& r) {
  FSDP_ASSIGN_OR_RETURN(const int port, ListeningPort(r.store_fd));
  if (port != r.master_port) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", r.store_fd, " listens on port ", port, ", not ", r.master_port));
  }
  fcntl(r.store_fd, F_SETFD, FD_CLOEXEC);
  fcntl(r.store_fd, F_SETFL, fcntl(r.store_fd, F_GETFL) | O_NONBLOCK);
  return FileDescriptor(r.store_fd);
}

StoreMember MemberOf(const Rendezvous& r) {
  StoreMember member = StoreMember::OfThisProcess(r.job, r.rank, r.world_size);
  member.token_digest = StoreMember::DigestOfToken(r.token);
  return member;
}

absl::StatusOr<FileDescriptor> ListenAtMaster(const Rendezvous& r, int port) {
  return r.is_on_several_hosts() ? ListenTcpForHosts(r.master_addr, port) : ListenTcp(r.master_addr, port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const Rendezvous& rendezvous, absl::Duration timeout) {
  if (!rendezvous.no_master.empty()) return absl::InvalidArgumentError(rendezvous.no_master);
  std::unique_ptr<JobStore> job(new JobStore(rendezvous, timeout));
  if (rendezvous.rank == 0) {
    FSDP_RETURN_IF_ERROR(job->Serve());
  }
  FSDP_RETURN_IF_ERROR(job->Connect());
  return job;
}

// The address is part of the name, so that one run id may be used for several jobs with different ports.
std::string JobStore::LocalName(const Rendezvous& r) {
  return absl::StrCat("fsdp-store-", geteuid(), "-",
                      DigestOf(absl::StrCat(r.job, " at ", r.master_addr, ":", r.master_port)).ToHex());
}

JobStore::JobStore(const Rendezvous& rendezvous, absl::Duration timeout)
    : rendezvous_(rendezvous),
      timeout_(timeout),
      deadline_(SteadyNow() + timeout),
      patience_end_(std::min(deadline_, SteadyNow() + kFormerLife)),
      me_(MemberOf(rendezvous)),
      local_name_(LocalName(rendezvous)) {}

bool JobStore::needs_tcp() const {
  return rendezvous_.is_on_several_hosts() &&
         (rendezvous_.uses_agent_store() || has_port() || !rendezvous_.candidate_ports.empty());
}

absl::StatusOr<FileDescriptor> JobStore::Listen() const {
  // A descriptor that cannot be adopted is not an error: the port may still be free.
  if (rendezvous_.store_fd >= 0) {
    if (absl::StatusOr<FileDescriptor> adopted = AdoptListener(rendezvous_); adopted.ok()) {
      return adopted;
    }
  }
  if (rendezvous_.uses_agent_store()) {
    return ListenTowardsAgent(rendezvous_, std::min(deadline_, SteadyNow() + kAgentAnswer));
  }
  if (has_port()) {
    return ListenAtMaster(rendezvous_, rendezvous_.master_port);
  }
  absl::Status status = absl::UnavailableError("the job has no port of its own");
  for (const int port : rendezvous_.candidate_ports) {
    absl::StatusOr<FileDescriptor> listener = ListenAtMaster(rendezvous_, port);
    if (listener.ok()) return listener;
    status = listener.status();
  }
  return status;
}

// On one host a single listener is enough. The store of an earlier group of the same job may still hold both addresses
// while it closes, so rank 0 retries.
absl::Status JobStore::Serve() {
  while (true) {
    std::vector<FileDescriptor> listeners;
    absl::StatusOr<FileDescriptor> local = ListenLocal(local_name_);
    absl::StatusOr<FileDescriptor> tcp = Listen();
    absl::Status held = local.ok() ? absl::OkStatus() : CheckHolder(ConnectLocal(local_name_));
    if (held.ok() && !tcp.ok() && has_port()) {
      held = CheckHolder(ConnectTcp(rendezvous_.master_addr, rendezvous_.master_port, SteadyNow() + kQuestion));
    }
    if (const std::optional<absl::Status> error = FinalError(held)) {
      return *error;
    }
    if (absl::IsDataLoss(tcp.status())) {
      return Annotate(tcp.status(), Prefix(rendezvous_));
    }
    const int published = tcp.ok() && rendezvous_.uses_agent_store() ? tcp->get() : -1;
    // If TCP is needed and not there, the local listener is closed again: a rank of this host would join a store that
    // the other hosts cannot reach.
    for (absl::StatusOr<FileDescriptor>* listener : {&local, &tcp}) {
      if (held.ok() && listener->ok() && (tcp.ok() || !needs_tcp())) {
        listeners.push_back(std::move(**listener));
      }
    }
    if (!listeners.empty()) {
      FSDP_ASSIGN_OR_RETURN(server_, StoreServer::Start(std::move(listeners), me_));
      return published < 0 ? absl::OkStatus()
                           : Annotate(PublishListener(rendezvous_, published, deadline_), Prefix(rendezvous_));
    }
    if (SteadyNow() >= deadline_) {
      return absl::DeadlineExceededError(absl::StrCat(Prefix(rendezvous_), " waited ", absl::FormatDuration(timeout_),
                                                      " for a place to serve its store: ", local.status().message(),
                                                      "; ", tcp.status().message()));
    }
    absl::SleepFor(Retry());
  }
}

// A missing answer counts as "no store" only after rank 0's patience is over: deciding too early would start a second
// store for the same job.
absl::Status JobStore::CheckHolder(absl::StatusOr<FileDescriptor> socket) const {
  if (!socket.ok() || !SameUser(socket->get())) {
    return absl::OkStatus();
  }
  const absl::Time until = std::max(patience_end_, SteadyNow() + kQuestion);
  const absl::StatusOr<StoreMember> holder = Store::WhoServes(*std::move(socket), me_, until);
  if (!holder.ok()) {
    return absl::OkStatus();
  }
  FSDP_RETURN_IF_ERROR(CheckJob(*holder));
  return absl::AlreadyExistsError(absl::StrCat("rank 0 is here already: ", holder->ToString()));
}

// The codes are Store::Connect's. A conflict with an earlier run of this job (kFormerLife) can resolve itself, so
// retry. A different job keeps the port: fail. The address in torchrun's agent may belong to an earlier run, which had
// another world size and whose port another job may have got: it is read again.
std::optional<absl::Status> JobStore::FinalError(const absl::Status& status) const {
  if (absl::IsDataLoss(status) || absl::IsUnauthenticated(status)) {
    return Annotate(status, Prefix(rendezvous_));
  }
  if (rendezvous_.uses_agent_store()) {
    return std::nullopt;
  }
  if (absl::IsInvalidArgument(status)) {
    return Annotate(status, Prefix(rendezvous_));
  }
  if (absl::IsFailedPrecondition(status)) {
    return absl::UnavailableError(absl::StrCat(
        Prefix(rendezvous_), ": port ", rendezvous_.master_port, " of ", rendezvous_.master_addr,
        " is held by another job: ", absl::StripPrefix(status.message(), "store: "),
        "; give this job a MASTER_PORT of its own, or wait for the end of the other; if the two are one job, give all "
        "its ranks the same --run_id or FSDP_RUN_ID"));
  }
  if (absl::IsAlreadyExists(status) && SteadyNow() >= patience_end_) {
    return absl::UnavailableError(absl::StrCat(
        Prefix(rendezvous_), ": ", status.message(),
        "; two processes are the same rank of one job: if these are two jobs, give each a MASTER_PORT or a --run_id of "
        "its own"));
  }
  return std::nullopt;
}

// Retries errors that can resolve themselves: rank 0 may start seconds later, and a listener that is about to close
// resets connections.
absl::Status JobStore::Connect() {
  while (true) {
    absl::StatusOr<std::unique_ptr<Store>> store = TryToConnect();
    if (store.ok()) {
      store_ = *std::move(store);
      return absl::OkStatus();
    }
    if (const std::optional<absl::Status> error = FinalError(store.status())) {
      return *error;
    }
    if (SteadyNow() >= deadline_) {
      return absl::DeadlineExceededError(
          absl::StrCat(Prefix(rendezvous_), " waited ", absl::FormatDuration(timeout_),
                       "; missing ranks: 0, which serves the store: ", store.status().message()));
    }
    absl::SleepFor(Retry());
  }
}

absl::StatusOr<std::unique_ptr<Store>> JobStore::TryToConnect() {
  absl::Status status;
  if (absl::StatusOr<FileDescriptor> socket = ConnectLocal(local_name_); socket.ok()) {
    absl::StatusOr<std::unique_ptr<Store>> store = Store::Connect(*std::move(socket), me_, deadline_);
    if (store.ok()) {
      return store;
    }
    status = store.status();
    if (FinalError(status).has_value()) {
      return status;
    }
  } else {
    status = socket.status();
  }
  if (rendezvous_.uses_agent_store()) {
    return ConnectByAgent();
  }
  if (has_port()) {
    return ConnectToPort(rendezvous_.master_port);
  }
  for (const int port : rendezvous_.candidate_ports) {
    absl::StatusOr<std::unique_ptr<Store>> store = ConnectToPort(port);
    if (store.ok()) return store;
    // Another job's store holds this port. Rank 0 found the same and took a later one.
    status =
        absl::IsFailedPrecondition(store.status()) ? absl::UnavailableError(store.status().message()) : store.status();
    if (FinalError(status).has_value()) return status;
  }
  return status;
}

// This rank asks who holds the port before it joins: an abandoned question is harmless when it is read later, but an
// abandoned hello would look like a rank that has gone. Each step is short, because rank 0 may serve at the local
// socket only, and this rank must try that again.
absl::StatusOr<std::unique_ptr<Store>> JobStore::ConnectToPort(int port) {
  FSDP_ASSIGN_OR_RETURN(FileDescriptor question, ConnectToMaster(port));
  const absl::StatusOr<StoreMember> holder = Store::WhoServes(std::move(question), me_, SteadyNow() + kQuestion);
  if (!holder.ok()) {
    return absl::UnavailableError(absl::StrCat("port ", port, " of ", rendezvous_.master_addr,
                                               " does not answer as a store: ", holder.status().message()));
  }
  FSDP_RETURN_IF_ERROR(CheckJob(*holder));
  FSDP_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectToMaster(port));
  return Store::Connect(std::move(socket), me_, deadline_);
}

// Short steps here too: a rank of rank 0's host may meet it at the local socket meanwhile.
absl::StatusOr<std::unique_ptr<Store>> JobStore::ConnectByAgent() {
  FSDP_ASSIGN_OR_RETURN(FileDescriptor socket,
                        ConnectToPublished(rendezvous_, std::min(deadline_, SteadyNow() + kAgentAnswer)));
  return Store::Connect(std::move(socket), me_, deadline_);
}

// Blocks for at most 5 seconds.
absl::StatusOr<FileDescriptor> JobStore::ConnectToMaster(int port) const {
  return ConnectTcp(rendezvous_.master_addr, port, std::min(deadline_, SteadyNow() + absl::Seconds(5)));
}

// torchrun's agent is one process that serves all ranks, so it is queried less often.
absl::Duration JobStore::Retry() const { return rendezvous_.uses_agent_store() ? kAgentRetry : kRetry; }

absl::Status JobStore::CheckJob(const StoreMember& holder) const {
  if (holder.job == me_.job) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this is job \"", holder.job, "\" (", holder.ToString(), "), not \"", me_.job, "\""));
}

absl::StatusOr<std::vector<std::string>> JobStore::AllGatherObject(std::string_view blob) {
  absl::StatusOr<std::vector<std::string>> blobs = store_->Gather(absl::StrCat("gather/", gathers_++), blob, deadline_);
  if (absl::IsDeadlineExceeded(blobs.status())) {
    return NameMissing(blobs.status());
  }
  if (!blobs.ok()) {
    return Annotate(blobs.status(), Prefix(rendezvous_));
  }
  return blobs;
}

// The error of a gather that is past its deadline. Rank 0 serves for one more second, so that the other ranks, whose
// deadlines pass at about the same time, also receive the missing ranks.
absl::Status JobStore::NameMissing(const absl::Status& status) {
  if (store_->Leave().ok() && server_ != nullptr) {
    server_->AwaitLeave(SteadyNow() + kLinger).IgnoreError();
  }
  return absl::DeadlineExceededError(absl::StrCat(Prefix(rendezvous_), " waited ", absl::FormatDuration(timeout_), "; ",
                                                  absl::StripPrefix(status.message(), "store: ")));
}

absl::StatusOr<std::unique_ptr<JobWatch>> JobStore::Watch(const WatchOptions& options) {
  absl::StatusOr<std::unique_ptr<JobWatch>> watch = JobWatch::Start(std::move(store_), std::move(server_), options);
  if (!watch.ok()) return Annotate(watch.status(), Prefix(rendezvous_));
  return watch;
}

absl::Status NameHolder(const absl::Status& error, const std::string& host, int port) {
  absl::StatusOr<FileDescriptor> socket = ConnectTcp(host, port, SteadyNow() + kQuestion);
  if (!socket.ok()) return error;
  const absl::StatusOr<StoreMember> holder =
      Store::WhoServes(*std::move(socket), StoreMember::OfThisProcess("", 0, 1), SteadyNow() + kQuestion);
  const std::string who =
      holder.ok() ? absl::StrCat("job \"", Printable(holder->job), "\" (", Printable(holder->ToString()), ") holds it")
                  : absl::StrCat("the program that holds it is no job's store: \"ss -ltnp\" lists it");
  return WithMessage(error, absl::StrCat(error.message(), "; ", who));
}

}  // namespace fsdp
