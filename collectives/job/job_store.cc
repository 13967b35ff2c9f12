// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/job_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

// Between two tries to bind or connect; rank 0 may start seconds later.
constexpr absl::Duration kRetry = absl::Milliseconds(10);

// How long rank 0 serves on after it has failed.
constexpr absl::Duration kLinger = absl::Seconds(1);

// "rank 1 of 4: rendezvous"
std::string Prefix(const Rendezvous& r) { return absl::StrCat("rank ", r.rank, " of ", r.world_size, ": rendezvous"); }

// Takes over the descriptor that the launcher passed, if it listens on MASTER_PORT. A grandchild of the launcher may
// have inherited the variable without the descriptor, whose number may then be that of any other file.
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

absl::StatusOr<FileDescriptor> ListenAtMaster(const Rendezvous& r) {
  if (r.store_fd >= 0) {
    if (absl::StatusOr<FileDescriptor> adopted = AdoptListener(r); adopted.ok()) {
      return adopted;
    }
  }
  if (r.master_port == 0 || r.master_port_is_taken) {
    return absl::UnavailableError("the job has no port of its own");
  }
  return ListenTcp(r.master_addr, r.master_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const Rendezvous& rendezvous, absl::Duration timeout) {
  std::unique_ptr<JobStore> job(new JobStore(rendezvous, timeout));
  if (rendezvous.rank == 0) {
    FSDP_RETURN_IF_ERROR(job->Serve());
  }
  FSDP_RETURN_IF_ERROR(job->Connect());
  return job;
}

JobStore::JobStore(const Rendezvous& rendezvous, absl::Duration timeout)
    : rendezvous_(rendezvous),
      timeout_(timeout),
      deadline_(absl::Now() + timeout),
      local_name_(absl::StrCat("fsdp-store-", geteuid(), "-", DigestOf(rendezvous.job).ToHex())) {}

// A single listener is enough. Both addresses may be in use for a moment by the store of an earlier group of the same
// job that is being closed, so rank 0 retries until the deadline.
absl::Status JobStore::Serve() {
  while (true) {
    std::vector<FileDescriptor> listeners;
    absl::StatusOr<FileDescriptor> local = ListenLocal(local_name_);
    absl::StatusOr<FileDescriptor> tcp = ListenAtMaster(rendezvous_);
    for (absl::StatusOr<FileDescriptor>* listener : {&local, &tcp}) {
      if (listener->ok()) {
        listeners.push_back(std::move(**listener));
      }
    }
    if (!listeners.empty()) {
      FSDP_ASSIGN_OR_RETURN(server_, StoreServer::Start(std::move(listeners), rendezvous_.job, rendezvous_.world_size));
      return absl::OkStatus();
    }
    if (absl::Now() >= deadline_) {
      return absl::DeadlineExceededError(absl::StrCat(Prefix(rendezvous_), " waited ", absl::FormatDuration(timeout_),
                                                      " for a place to serve its store: ", local.status().message(),
                                                      "; ", tcp.status().message()));
    }
    absl::SleepFor(kRetry);
  }
}

// Retries every error but a wrong world size: rank 0 may start seconds later, another job's store may still hold the
// port, and a listener that is about to close resets connections.
absl::Status JobStore::Connect() {
  while (true) {
    absl::StatusOr<std::unique_ptr<Store>> store = TryToConnect();
    if (store.ok()) {
      store_ = *std::move(store);
      return absl::OkStatus();
    }
    if (absl::IsInvalidArgument(store.status())) {
      return Annotate(store.status(), Prefix(rendezvous_));
    }
    if (absl::Now() >= deadline_) {
      return absl::DeadlineExceededError(
          absl::StrCat(Prefix(rendezvous_), " waited ", absl::FormatDuration(timeout_),
                       "; missing ranks: 0, which serves the store: ", store.status().message()));
    }
    absl::SleepFor(kRetry);
  }
}

absl::StatusOr<std::unique_ptr<Store>> JobStore::TryToConnect() {
  const Rendezvous& r = rendezvous_;
  const StoreMember me = {.job = r.job, .rank = r.rank, .world_size = r.world_size};
  absl::Status status;
  if (absl::StatusOr<FileDescriptor> socket = ConnectLocal(local_name_); socket.ok()) {
    absl::StatusOr<std::unique_ptr<Store>> store = Store::Connect(*std::move(socket), me, deadline_);
    if (store.ok()) {
      return store;
    }
    status = store.status();
  } else {
    status = socket.status();
  }
  if (r.master_port == 0 || r.master_port_is_taken) {
    return status;
  }
  // For at most 5 seconds: a host that does not answer must not keep this rank from trying the local socket again.
  FSDP_ASSIGN_OR_RETURN(FileDescriptor socket,
                        ConnectTcp(r.master_addr, r.master_port, std::min(deadline_, absl::Now() + absl::Seconds(5))));
  return Store::Connect(std::move(socket), me, deadline_);
}

// Each rank sets "gather/<number>/<rank>" and gets the keys of all ranks, in order. The keys are never deleted: a job
// gathers a few times, and the store goes with the rendezvous.
absl::StatusOr<std::vector<std::string>> JobStore::GatherBlobs(std::string_view blob) {
  const std::string prefix = absl::StrCat("gather/", gathers_++, "/");
  FSDP_RETURN_IF_ERROR(store_->Set(absl::StrCat(prefix, rendezvous_.rank), std::string(blob)));
  std::vector<std::string> blobs;
  for (int r = 0; r < rendezvous_.world_size; ++r) {
    absl::StatusOr<std::string> theirs = store_->Get(absl::StrCat(prefix, r), deadline_);
    if (absl::IsDeadlineExceeded(theirs.status())) {
      return NameMissing(prefix);
    }
    if (!theirs.ok()) {
      return Annotate(theirs.status(), Prefix(rendezvous_));
    }
    blobs.push_back(*std::move(theirs));
  }
  return blobs;
}

// The error of a gather that is past its deadline. Rank 0 serves for one more second, so that the other ranks, whose
// deadlines pass at about the same time, can find out the missing ranks too.
absl::Status JobStore::NameMissing(const std::string& prefix) {
  std::vector<int> missing;
  for (int r = 0; r < rendezvous_.world_size; ++r) {
    if (!store_->Get(absl::StrCat(prefix, r), absl::InfinitePast()).ok()) {
      missing.push_back(r);
    }
  }
  if (store_->Leave().ok() && server_ != nullptr) {
    server_->AwaitLeave(absl::Now() + kLinger).IgnoreError();
  }
  return absl::DeadlineExceededError(absl::StrCat(Prefix(rendezvous_), " waited ", absl::FormatDuration(timeout_),
                                                  "; missing ranks: ", absl::StrJoin(missing, ", ")));
}

absl::Status JobStore::Close() {
  FSDP_RETURN_IF_ERROR(store_->Leave());
  return server_ == nullptr ? absl::OkStatus() : server_->AwaitLeave(deadline_);
}

}  // namespace fsdp
