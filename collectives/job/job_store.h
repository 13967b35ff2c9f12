// SPDX-License-Identifier: Apache-2.0
//
// JobStore: how the ranks of a job find each other before they share anything. Rank 0 serves the job's store on
//   - a local socket with an abstract name made of the user and the job, and
//   - TCP at MASTER_ADDR:MASTER_PORT, unless somebody else listens there; our launcher hands it over already listening.
// The others try both until one answers as this job's store. Under torchrun, whose agent holds MASTER_PORT for a store
// of its own, under Slurm and under Open MPI the local socket is enough, since all ranks are on one host; it has no
// port to clash over, is closed to other users, and vanishes with rank 0.
#ifndef FSDP_COLLECTIVES_JOB_JOB_STORE_H_
#define FSDP_COLLECTIVES_JOB_JOB_STORE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/job/store.h"
#include "fsdp/collectives/job/store_server.h"

namespace fsdp {

class JobStore {
 public:
  // Serves (rank 0) and connects. kDeadlineExceeded when rank 0's store does not appear.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const Rendezvous& rendezvous, absl::Duration timeout);

  Store& store() { return *store_; }

  // Every rank's blob, by rank; all ranks call it equally often. kDeadlineExceeded names the missing ranks, once
  // `timeout` since Open has passed.
  absl::StatusOr<std::vector<std::string>> GatherBlobs(std::string_view blob);

  // To be called by every rank when it needs the store no more; on rank 0 it waits for the others.
  absl::Status Close();

 private:
  JobStore(const Rendezvous& rendezvous, absl::Duration timeout);

  absl::Status Serve();
  absl::Status Connect();
  absl::StatusOr<std::unique_ptr<Store>> TryToConnect();
  absl::Status NameMissing(const std::string& prefix);

  const Rendezvous rendezvous_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
  const std::string local_name_;
  std::unique_ptr<StoreServer> server_;  // rank 0 only
  std::unique_ptr<Store> store_;
  int gathers_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_JOB_STORE_H_
