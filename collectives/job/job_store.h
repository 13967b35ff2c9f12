// SPDX-License-Identifier: Apache-2.0
//
// JobStore: how the ranks of a job find each other before they share anything. Rank 0 serves the job's store on
//   - a local socket with an abstract name made from the user and the job, for the ranks of its host: it needs no free
//     port, is closed to other users, and vanishes with rank 0's process; and on
//   - a TCP socket at MASTER_ADDR, for ranks of other hosts. Its port depends on the launcher:
//
//       our launcher, Kubernetes, ranks by hand, mpirun   MASTER_PORT; our launcher passes rank 0 the socket, which
//                                                         listens already
//       Slurm                                             the first free one of Rendezvous::candidate_ports
//       torchrun on several hosts                         any; its agent listens on MASTER_PORT and gives the other
//                                                         ranks the address of rank 0 (agent_store.h)
//
// The other ranks try both until one answers as this job's store. If all ranks are on one host by the environment and
// MASTER_PORT is not free, the local socket is enough.
//
//   rank 0   Serve --> Connect --> AllGatherObject ... --> Watch
//   rank r             Connect --> AllGatherObject ... --> Watch
//
// Keep the JobWatch that Watch returns, which serves on rank 0, as long as the job's group: MASTER_PORT stays taken,
// and a rank of another job that connects to it receives the name of its owner. If the port is taken, its holder
// decides: a store of another job, or of another process that is rank 0 of this job, is an error; a program that does
// not answer as a store is ignored, and the local socket must be enough.
#ifndef FSDP_COLLECTIVES_JOB_JOB_STORE_H_
#define FSDP_COLLECTIVES_JOB_JOB_STORE_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/job/job_watch.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/job/store.h"
#include "fsdp/collectives/job/store_server.h"

namespace fsdp {

class JobStore {
 public:
  // Serves (rank 0 only) and connects. Blocks for up to `timeout`. kDeadlineExceeded if rank 0's store does not appear;
  // kInvalidArgument if rank 0 has another world size, or cannot be found (Rendezvous::no_master); kUnavailable, naming
  // job and process, if another job holds MASTER_PORT, or if another process is this rank of this job.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const Rendezvous& rendezvous, absl::Duration timeout);

  // The name of the job's local socket, abstract (unix(7)).
  static std::string LocalName(const Rendezvous& rendezvous);

  Store& store() { return *store_; }

  // Every rank's blob, by rank. All ranks must call it the same number of times. kDeadlineExceeded names the missing
  // ranks, once `timeout` has passed since Open; kUnavailable names a rank that has gone.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob);

  // The ranks watch each other from now on: every rank calls it when it does not need the store any more. The watch
  // takes over the connection and, on rank 0, the server: afterwards only the destructor may be called. Rank 0's watch
  // must not end before all ranks have called it.
  absl::StatusOr<std::unique_ptr<JobWatch>> Watch(const WatchOptions& options = {});

 private:
  JobStore(const Rendezvous& rendezvous, absl::Duration timeout);

  // There is one port that all ranks know and that no other program of the job uses.
  bool has_port() const { return rendezvous_.master_port != 0 && !rendezvous_.master_port_is_taken; }
  // The local socket of rank 0 does not reach all ranks, and rank 0 has an address for the others.
  bool needs_tcp() const;
  absl::Status Serve();
  // A TCP listener, if the job has an address for one.
  absl::StatusOr<FileDescriptor> Listen() const;
  // OK unless a store answers at `socket`, an address that rank 0 could not listen on. kUnavailable for another job's
  // store, kAlreadyExists for one of this job.
  absl::Status CheckHolder(absl::StatusOr<FileDescriptor> socket) const;
  // `status` with instructions for the user, if a retry cannot help; nullopt if it can.
  std::optional<absl::Status> FinalError(const absl::Status& status) const;
  absl::Status Connect();
  absl::StatusOr<std::unique_ptr<Store>> TryToConnect();
  // The store at a port of MASTER_ADDR.
  absl::StatusOr<std::unique_ptr<Store>> ConnectToPort(int port);
  // The store at the address that torchrun's agent has.
  absl::StatusOr<std::unique_ptr<Store>> ConnectByAgent();
  absl::StatusOr<FileDescriptor> ConnectToMaster(int port) const;
  // The pause between two tries.
  absl::Duration Retry() const;
  // kFailedPrecondition, naming both, if `holder` serves another job.
  absl::Status CheckJob(const StoreMember& holder) const;
  absl::Status NameMissing(const absl::Status& status);

  const Rendezvous rendezvous_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
  const absl::Time patience_end_;  // of FinalError
  const StoreMember me_;
  const std::string local_name_;
  std::unique_ptr<StoreServer> server_;  // rank 0 only
  std::unique_ptr<Store> store_;
  int gathers_ = 0;
};

// `error`, the failure to listen on a port, with the holder of the port: the job and process of a store that answers
// there within a second, or how to find any other program. Unchanged if nothing accepts connections there.
absl::Status NameHolder(const absl::Status& error, const std::string& host, int port);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_JOB_STORE_H_
