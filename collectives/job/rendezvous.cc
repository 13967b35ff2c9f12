// SPDX-License-Identifier: Apache-2.0
//
// Each family of variables has a parser that fills a Rendezvous. torchrun's family comes first because our launcher
// sets it too, also inside a Slurm or Open MPI job; it then describes the inner job.
//
// The name of the job does not depend on the family (job_identity.h). torchrun's restart count is not part of it: on
// several hosts each agent counts separately.
//
// A Slurm step has no reserved port unless it requested some (--resv-ports). Then all ranks compute the same candidates
// from the job's name, and rank 0 takes the first free one.
//
// Numbers are parsed strictly. A variable with a typo is an error that names it, and not a job of one rank.
#include "fsdp/collectives/job/rendezvous.h"

#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/job_identity.h"
#include "fsdp/collectives/job/slurm_lists.h"

namespace fsdp {
namespace {

// The variables of one family, as numbers and texts. The first error is kept, so that a parser needs no checks in
// between.
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& getenv) : getenv_(getenv) {}

  bool Has(const std::string& name) const { return getenv_(name).has_value(); }

  // The first of `names` that is set and not empty, else `otherwise`.
  std::string Text(std::initializer_list<const char*> names, const std::string& otherwise) const {
    for (const char* name : names) {
      if (const std::optional<std::string> value = getenv_(name); value.has_value() && !value->empty()) {
        return *value;
      }
    }
    return otherwise;
  }

  // A number of at least `least`; an error if it is unset.
  int Number(const std::string& name, int least) {
    const std::optional<std::string> value = getenv_(name);
    int number = 0;
    if (!value.has_value()) {
      Fail(absl::StrCat(name, " is not set, although others of its family are"));
    } else if (!absl::SimpleAtoi(*value, &number) || number < least) {
      Fail(absl::StrCat(name, " is \"", *value, "\", wanted a number of at least ", least));
    }
    return number;
  }

  int NumberOr(const std::string& name, int least, int otherwise) {
    return Has(name) ? Number(name, least) : otherwise;
  }

  void Fail(std::string text) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(std::move(text));
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  const EnvironmentLookup& getenv_;
  absl::Status status_;
};

absl::StatusOr<Rendezvous> Checked(const Variables& variables, const Rendezvous& r) {
  FSDP_RETURN_IF_ERROR(variables.status());
  if (r.rank >= r.world_size || r.local_rank >= r.local_world_size || r.local_world_size > r.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the environment of ", r.source, " contradicts itself: rank ",
                                                   r.rank, " of world size ", r.world_size, ", local rank ",
                                                   r.local_rank, " of local world size ", r.local_world_size));
  }
  if (r.master_port > std::numeric_limits<uint16_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("MASTER_PORT is ", r.master_port, ", at most 65535"));
  }
  return r;
}

absl::StatusOr<Rendezvous> ParseTorchrun(Variables variables) {
  Rendezvous r;
  r.source = "torchrun";
  r.rank = variables.Number("RANK", 0);
  r.world_size = variables.Number("WORLD_SIZE", 1);
  // Both variables or neither must be set: some schedulers set only RANK and WORLD_SIZE.
  if (variables.Has("LOCAL_RANK") || variables.Has("LOCAL_WORLD_SIZE")) {
    r.local_rank = variables.Number("LOCAL_RANK", 0);
    r.local_world_size = variables.Number("LOCAL_WORLD_SIZE", 1);
  } else {
    r.local_rank = r.rank;
    r.local_world_size = r.world_size;
    r.local_ranks_are_known = r.world_size == 1;
  }
  r.master_addr = variables.Text({"MASTER_ADDR"}, "");
  r.master_port = variables.NumberOr("MASTER_PORT", 1, 0);
  if (r.world_size > 1 && (r.master_addr.empty() || r.master_port == 0)) {
    variables.Fail(absl::StrCat(r.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT",
                                " is not set, although RANK and WORLD_SIZE are"));
  }
  r.master_port_is_taken = variables.Text({"TORCHELASTIC_USE_AGENT_STORE"}, "") == "True";
  r.store_fd = r.rank == 0 ? variables.NumberOr(kStoreDescriptorVariable, 0, -1) : -1;
  return Checked(variables, r);
}

int SlurmLocalWorldSize(Variables& variables, int world_size) {
  int nodes = variables.NumberOr("SLURM_NNODES", 1, 1);
  nodes = variables.NumberOr("SLURM_STEP_NUM_NODES", 1, nodes);
  if (nodes == 1) {
    return world_size;
  }
  const std::string tasks = variables.Text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}, "");
  const int local = SlurmTasksOfNode(tasks, variables.Number("SLURM_NODEID", 0));
  if (local < 0) {
    variables.Fail(absl::StrCat("SLURM_STEP_TASKS_PER_NODE is \"", tasks, "\", wanted one such as \"2(x3),1\""));
  }
  return local;
}

absl::StatusOr<Rendezvous> ParseSlurm(Variables variables) {
  Rendezvous r;
  r.source = "slurm";
  r.rank = variables.Number("SLURM_PROCID", 0);
  r.world_size = variables.Number(variables.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 1);
  r.local_rank = variables.Number("SLURM_LOCALID", 0);
  r.local_world_size = SlurmLocalWorldSize(variables, r.world_size);
  const std::string nodes = variables.Text({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}, "");
  r.master_addr =
      variables.Text({"MASTER_ADDR"},
                     nodes.empty() ? variables.Text({"SLURM_LAUNCH_NODE_IPADDR"}, "localhost") : FirstSlurmHost(nodes));
  if (r.master_addr.empty()) {
    variables.Fail(absl::StrCat("SLURM_STEP_NODELIST is ", Quote(nodes), ", wanted a hostlist such as \"n[01-03,7]\""));
  }
  r.master_port = variables.NumberOr("MASTER_PORT", 1, 0);
  const std::string ports = variables.Text({"SLURM_STEP_RESV_PORTS"}, "");
  if (r.is_on_several_hosts() && r.master_port == 0 && !ports.empty()) {
    r.candidate_ports = SlurmPorts(ports);
    if (r.candidate_ports.empty()) {
      variables.Fail(absl::StrCat("SLURM_STEP_RESV_PORTS is ", Quote(ports), ", wanted ports such as \"12000-12003\""));
    }
  }
  return Checked(variables, r);
}

// MPI's launchers give ranks their numbers, but not the address of rank 0; on one host the job's local socket is
// enough. `pass` is the launcher's option to pass a variable.
absl::StatusOr<Rendezvous> WithMaster(Variables variables, Rendezvous r, const std::string& pass) {
  r.master_addr = variables.Text({"MASTER_ADDR"}, "localhost");
  r.master_port = variables.NumberOr("MASTER_PORT", 1, 0);
  if (r.is_on_several_hosts() && (!variables.Has("MASTER_ADDR") || r.master_port == 0)) {
    r.no_master = absl::StrCat(r.master_port == 0 ? "MASTER_PORT" : "MASTER_ADDR", " is not set, although only ",
                               r.local_world_size, " of ", r.world_size, " ranks are on the host of rank ", r.rank,
                               ": pass the name of rank 0's host and a free port of it on, as in ", pass,
                               ", or let MPI carry all messages by backend mpi");
  }
  return Checked(variables, r);
}

absl::StatusOr<Rendezvous> ParseOpenMpi(Variables variables) {
  Rendezvous r;
  r.source = "openmpi";
  r.rank = variables.Number("OMPI_COMM_WORLD_RANK", 0);
  r.world_size = variables.Number("OMPI_COMM_WORLD_SIZE", 1);
  r.local_rank = variables.Number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  r.local_world_size = variables.Number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  return WithMaster(variables, r, "mpirun -x MASTER_ADDR=host-a -x MASTER_PORT=29500");
}

// For Hydra, which starts the ranks of MPICH, Intel MPI and MVAPICH. Slurm's PMI sets PMI_RANK too, but comes first.
absl::StatusOr<Rendezvous> ParseMpich(Variables variables) {
  Rendezvous r;
  r.source = "mpich";
  r.rank = variables.Number("PMI_RANK", 0);
  r.world_size = variables.Number("PMI_SIZE", 1);
  r.local_rank = variables.Number("MPI_LOCALRANKID", 0);
  r.local_world_size = variables.Number("MPI_LOCALNRANKS", 1);
  return WithMaster(variables, r, "mpiexec -genv MASTER_ADDR host-a -genv MASTER_PORT 29500");
}

// The batch script also has SLURM_PROCID, but it is not a task of a step: a program that it starts without srun is a
// single process.
bool InSlurmStep(const Variables& variables) {
  const bool in_batch_script =
      variables.Text({"ENVIRONMENT"}, "") == "BATCH" && variables.Text({"SLURM_STEP_ID", "SLURM_STEPID"}, "").empty();
  return variables.Has("SLURM_PROCID") && !in_batch_script;
}

// Below the range from which kernels assign ports (32768 and more).
std::vector<int> PortsOfJob(const std::string& job) {
  constexpr int kFirst = 20000;
  constexpr uint64_t kSpread = 10000;
  constexpr int kCandidates = 16;
  const int first = kFirst + static_cast<int>(DigestOf(job).high % kSpread);
  std::vector<int> ports;
  for (int i = 0; i < kCandidates; ++i) {
    ports.push_back(first + i);
  }
  return ports;
}

absl::StatusOr<Rendezvous> ParseFamily(const Variables& variables) {
  if (variables.Has("RANK") || variables.Has("WORLD_SIZE")) {
    return ParseTorchrun(variables);
  }
  if (InSlurmStep(variables)) {
    return ParseSlurm(variables);
  }
  if (variables.Has("OMPI_COMM_WORLD_RANK") || variables.Has("OMPI_COMM_WORLD_SIZE")) {
    return ParseOpenMpi(variables);
  }
  if (variables.Has("PMI_RANK") && variables.Has("MPI_LOCALRANKID")) {
    return ParseMpich(variables);
  }
  Rendezvous alone;
  alone.source = "single process";
  return alone;
}

}  // namespace

absl::StatusOr<Rendezvous> ParseRendezvous(const EnvironmentLookup& getenv, const ProcessEvidence& evidence) {
  FSDP_ASSIGN_OR_RETURN(Rendezvous r, ParseFamily(Variables(getenv)));
  r.job = IdentifyJob(getenv, evidence);
  r.token = getenv(kTokenVariable).value_or("");
  if (r.source == "slurm" && r.is_on_several_hosts() && r.master_port == 0 && r.candidate_ports.empty()) {
    r.candidate_ports = PortsOfJob(r.job);
  }
  return r;
}

absl::StatusOr<Rendezvous> RendezvousFromEnvironment() {
  const auto lookup = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return ParseRendezvous(lookup, ProcessEvidence::OfThisProcess());
}

}  // namespace fsdp
