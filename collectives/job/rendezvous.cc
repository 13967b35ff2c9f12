// SPDX-License-Identifier: Apache-2.0
//
// Each family of variables has a parser that fills a Rendezvous. torchrun's family comes first because our launcher
// sets it too, also inside a Slurm or Open MPI job, where it then describes the inner job.
//
// The name of the job does not depend on the family (job_identity.h). torchrun's restart count is no part of it: on
// several hosts each agent counts for itself.
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
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The variables of one family, as numbers and texts; the first error is kept, so that a parser reads like a list.
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

  // A number of at least `least`; an error when it is unset.
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
  // Both variables or neither must be set: some schedulers set only RANK and WORLD_SIZE, for one host.
  if (variables.Has("LOCAL_RANK") || variables.Has("LOCAL_WORLD_SIZE")) {
    r.local_rank = variables.Number("LOCAL_RANK", 0);
    r.local_world_size = variables.Number("LOCAL_WORLD_SIZE", 1);
  } else {
    r.local_rank = r.rank;
    r.local_world_size = r.world_size;
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

// "node[03-07,12],other" -> "node03".
std::string FirstSlurmHost(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  std::string host = list.substr(0, end);
  if (end != std::string::npos && list[end] == '[') {
    host += list.substr(end + 1, list.find_first_of(",-]", end + 1) - end - 1);
  }
  return host;
}

// The number of tasks on node `node` in Slurm's list "2(x3),1": two on each of three nodes, then one on one node. -1 if
// the list is malformed or too short.
int SlurmTasksOfNode(const std::string& list, int node) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(list, ','))) {
    const size_t mark = part.find("(x");
    int tasks = -1;
    int repeat = 1;
    if (!absl::SimpleAtoi(part.substr(0, mark), &tasks) ||
        (mark != std::string::npos &&
         (part.back() != ')' || !absl::SimpleAtoi(part.substr(mark + 2, part.size() - mark - 3), &repeat)))) {
      return -1;
    }
    if (node < repeat) {
      return tasks;
    }
    node -= repeat;
  }
  return -1;
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
  r.master_port = variables.NumberOr("MASTER_PORT", 1, 0);
  return Checked(variables, r);
}

absl::StatusOr<Rendezvous> ParseOpenMpi(Variables variables) {
  Rendezvous r;
  r.source = "openmpi";
  r.rank = variables.Number("OMPI_COMM_WORLD_RANK", 0);
  r.world_size = variables.Number("OMPI_COMM_WORLD_SIZE", 1);
  r.local_rank = variables.Number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  r.local_world_size = variables.Number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  r.master_addr = variables.Text({"MASTER_ADDR"}, "localhost");
  r.master_port = variables.NumberOr("MASTER_PORT", 1, 0);
  return Checked(variables, r);
}

// The batch script itself has SLURM_PROCID too, but it is no task of a step: a program that it starts without srun is a
// single process.
bool InSlurmStep(const Variables& variables) {
  const bool in_batch_script =
      variables.Text({"ENVIRONMENT"}, "") == "BATCH" && variables.Text({"SLURM_STEP_ID", "SLURM_STEPID"}, "").empty();
  return variables.Has("SLURM_PROCID") && !in_batch_script;
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
  Rendezvous alone;
  alone.source = "single process";
  return alone;
}

}  // namespace

absl::StatusOr<Rendezvous> ParseRendezvous(const EnvironmentLookup& getenv, const ProcessEvidence& evidence) {
  FSDP_ASSIGN_OR_RETURN(Rendezvous r, ParseFamily(Variables(getenv)));
  r.job = IdentifyJob(getenv, evidence);
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
