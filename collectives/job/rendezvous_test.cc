// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/rendezvous.h"

#include <map>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/job/job_identity.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<Rendezvous> Parse(const Environment& environment) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
  return ParseRendezvous(lookup, {.user = 7, .directory = "/run", .command_line = {"program"}});
}

Environment Torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node1"},
          {"MASTER_PORT", "29500"}};
}

Environment With(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    environment[name] = value;
  }
  return environment;
}

Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(RendezvousTest, NoJobIsOneProcess) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse({}));
  EXPECT_EQ(r.source, "single process");
  EXPECT_EQ(r.world_size, 1);
  EXPECT_EQ(r.rank, 0);
}

TEST(RendezvousTest, TorchrunsVariables) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(Torchrun()));
  EXPECT_EQ(r.source, "torchrun");
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world_size, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_world_size, 4);
  EXPECT_EQ(r.master_addr, "node1");
  EXPECT_EQ(r.master_port, 29500);
  EXPECT_FALSE(r.master_port_is_taken);
  EXPECT_EQ(r.store_fd, -1);
}

TEST(RendezvousTest, TorchrunsAgentHoldsThePort) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(With(Torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})));
  EXPECT_TRUE(r.master_port_is_taken);
}

TEST(RendezvousTest, EveryRankOfATorchrunJobHasTheSameName) {
  const Environment first = With(Torchrun(), {{"TORCHELASTIC_RUN_ID", "a"}, {"TORCHELASTIC_RESTART_COUNT", "0"}});
  EXPECT_EQ(Parse(first)->job, "torchrun a");
  EXPECT_EQ(Parse(With(first, {{"RANK", "6"}, {"LOCAL_RANK", "2"}}))->job, "torchrun a");
  EXPECT_EQ(Parse(With(first, {{"TORCHELASTIC_RESTART_COUNT", "1"}}))->job, "torchrun a")
      << "each agent counts its own restarts";
  EXPECT_EQ(Parse(With(first, {{"TORCHELASTIC_RUN_ID", "b"}}))->job, "torchrun b");
}

TEST(RendezvousTest, TheLaunchersDescriptorIsRank0s) {
  EXPECT_EQ(Parse(With(Torchrun(), {{"FSDP_STORE_FD", "7"}}))->store_fd, -1);
  EXPECT_EQ(Parse(With(Torchrun(), {{"RANK", "0"}, {"FSDP_STORE_FD", "7"}}))->store_fd, 7);
}

TEST(RendezvousTest, WithoutLocalVariablesTheRanksMayBeOnSeveralHosts) {
  EXPECT_TRUE(Parse(Torchrun())->local_ranks_are_known);
  const Environment bare = Without(Without(Torchrun(), "LOCAL_RANK"), "LOCAL_WORLD_SIZE");
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(bare));
  EXPECT_FALSE(r.local_ranks_are_known);
  EXPECT_TRUE(r.is_on_several_hosts());
  EXPECT_EQ(r.local_rank, 5);
  EXPECT_EQ(r.local_world_size, 8);
  const Rendezvous alone = *Parse(With(bare, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_TRUE(alone.local_ranks_are_known);
  EXPECT_FALSE(alone.is_on_several_hosts());
}

TEST(RendezvousTest, MissingVariablesAreNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(Parse(Without(Torchrun(), name)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

TEST(RendezvousTest, NonsenseIsNamed) {
  EXPECT_THAT(Parse(With(Torchrun(), {{"RANK", "two"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, "RANK is \"two\", wanted a number of at least 0"));
  EXPECT_THAT(Parse(With(Torchrun(), {{"WORLD_SIZE", "0"}})), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse(With(Torchrun(), {{"MASTER_PORT", "65536"}})), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse(With(Torchrun(), {{"RANK", "8"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 8 of world size 8")));
  EXPECT_THAT(Parse(With(Torchrun(), {{"LOCAL_RANK", "4"}})), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse(With(Torchrun(), {{"LOCAL_WORLD_SIZE", "9"}})), StatusIs(absl::StatusCode::kInvalidArgument));
}

Environment Slurm() {
  return {{"SLURM_PROCID", "3"},   {"SLURM_NTASKS", "4"},        {"SLURM_LOCALID", "3"},
          {"SLURM_JOB_ID", "123"}, {"SLURM_STEP_ID", "0"},       {"SLURM_JOB_NODELIST", "gpu[07-09,12],cpu1"},
          {"SLURM_NNODES", "1"},   {"SLURM_STEP_NUM_TASKS", "4"}};
}

TEST(RendezvousTest, SlurmsVariables) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(Slurm()));
  EXPECT_EQ(r.source, "slurm");
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world_size, 4);
  EXPECT_EQ(r.local_rank, 3);
  EXPECT_EQ(r.local_world_size, 4);
  EXPECT_EQ(r.master_addr, "gpu07");
  EXPECT_EQ(r.master_port, 0);
  EXPECT_EQ(r.job, "slurm 123.0");
}

TEST(RendezvousTest, SlurmsFirstHostServesTheStore) {
  EXPECT_EQ(Parse(With(Slurm(), {{"SLURM_STEP_NODELIST", "n[01-03,7]"}}))->master_addr, "n01") << "of the step";
  EXPECT_EQ(Parse(With(Slurm(), {{"MASTER_ADDR", "head"}}))->master_addr, "head");
  EXPECT_EQ(Parse(Without(Slurm(), "SLURM_JOB_NODELIST"))->master_addr, "localhost");
  EXPECT_THAT(Parse(With(Slurm(), {{"SLURM_STEP_NODELIST", "n[01"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_STEP_NODELIST is \"n[01\"")));
}

Environment TwoSlurmNodes() {
  return With(Slurm(), {{"SLURM_STEP_NUM_NODES", "2"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                        {"SLURM_NODEID", "1"},
                        {"SLURM_LOCALID", "1"}});
}

TEST(RendezvousTest, ASlurmStepOnSeveralNodesHasPortsThatAllItsRanksKnow) {
  EXPECT_TRUE(Parse(Slurm())->candidate_ports.empty()) << "one host meets at its local socket";
  const Environment nodes = TwoSlurmNodes();
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(nodes));
  EXPECT_TRUE(r.is_on_several_hosts());
  ASSERT_EQ(r.candidate_ports.size(), 16u);
  EXPECT_GE(r.candidate_ports.front(), 20000);
  EXPECT_LT(r.candidate_ports.back(), 30016);
  EXPECT_EQ(Parse(With(nodes, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}}))->candidate_ports, r.candidate_ports);
  EXPECT_NE(Parse(With(nodes, {{"SLURM_STEP_ID", "1"}}))->candidate_ports, r.candidate_ports);
  EXPECT_TRUE(Parse(With(nodes, {{"MASTER_PORT", "29500"}}))->candidate_ports.empty());
}

TEST(RendezvousTest, PortsThatSlurmReservedAreTaken) {
  EXPECT_EQ(Parse(With(TwoSlurmNodes(), {{"SLURM_STEP_RESV_PORTS", "12000-12001"}}))->candidate_ports,
            (std::vector<int>{12000, 12001}));
  EXPECT_THAT(Parse(With(TwoSlurmNodes(), {{"SLURM_STEP_RESV_PORTS", "12000-"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_STEP_RESV_PORTS is \"12000-\"")));
}

TEST(RendezvousTest, SlurmsTasksPerNodeGiveTheLocalWorldSize) {
  const Environment nodes = With(Slurm(), {{"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_LOCALID", "0"}});
  const Environment tasks = With(nodes, {{"SLURM_STEP_TASKS_PER_NODE", "1(x2),2"}});
  EXPECT_EQ(Parse(With(tasks, {{"SLURM_NODEID", "0"}}))->local_world_size, 1);
  EXPECT_EQ(Parse(With(tasks, {{"SLURM_NODEID", "2"}}))->local_world_size, 2);
  EXPECT_THAT(Parse(tasks), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_NODEID")));
  EXPECT_THAT(Parse(With(nodes, {{"SLURM_NODEID", "0"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_STEP_TASKS_PER_NODE")));
  EXPECT_THAT(Parse(With(tasks, {{"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "2x(3"}})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RendezvousTest, ASlurmBatchScriptIsNoTask) {
  const Environment script = Without(With(Slurm(), {{"ENVIRONMENT", "BATCH"}}), "SLURM_STEP_ID");
  EXPECT_EQ(Parse(script)->source, "single process");
  EXPECT_EQ(Parse(With(Slurm(), {{"ENVIRONMENT", "BATCH"}}))->source, "slurm");
}

Environment OpenMpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "77"}};
}

TEST(RendezvousTest, OpenMpisVariables) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(OpenMpi()));
  EXPECT_EQ(r.source, "openmpi");
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.world_size, 2);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_world_size, 2);
  EXPECT_EQ(r.job, "pmix 77");
  EXPECT_THAT(Parse(Without(OpenMpi(), "OMPI_COMM_WORLD_SIZE")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("OMPI_COMM_WORLD_SIZE")));
}

TEST(RendezvousTest, MpiOnSeveralHostsNeedsAMaster) {
  const Environment hosts = With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_THAT(Parse(hosts)->no_master,
              testing::AllOf(HasSubstr("MASTER_PORT is not set, although only 1 of 2 ranks are on the host of rank 1"),
                             HasSubstr("mpirun -x MASTER_ADDR=host-a -x MASTER_PORT=29500"), HasSubstr("backend mpi")));
  EXPECT_THAT(Parse(With(hosts, {{"MASTER_PORT", "29500"}}))->no_master, HasSubstr("MASTER_ADDR is not set"));
  ASSERT_OK_AND_ASSIGN(const Rendezvous r, Parse(With(hosts, {{"MASTER_ADDR", "host-a"}, {"MASTER_PORT", "29500"}})));
  EXPECT_EQ(r.master_addr, "host-a");
  EXPECT_EQ(r.master_port, 29500);
  EXPECT_EQ(r.no_master, "");
  EXPECT_EQ(Parse(OpenMpi())->no_master, "") << "on one host the local socket is enough";
}

TEST(RendezvousTest, TheVariablesOfMpichsLauncher) {
  const Environment environment = {
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_THAT(Parse(environment)->no_master, HasSubstr("mpiexec -genv MASTER_ADDR"));
  ASSERT_OK_AND_ASSIGN(const Rendezvous r,
                       Parse(With(environment, {{"MASTER_ADDR", "host-a"}, {"MASTER_PORT", "29500"}})));
  EXPECT_EQ(r.source, "mpich");
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world_size, 4);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.local_world_size, 2);
  EXPECT_EQ(Parse(With(With(environment, OpenMpi()), Slurm()))->source, "slurm") << "whose PMI sets PMI_RANK too";
}

TEST(RendezvousTest, TheJobsTokenIsTakenFromTheEnvironment) {
  EXPECT_EQ(Parse(Torchrun())->token, "");
  EXPECT_EQ(Parse(With(Torchrun(), {{"FSDP_JOB_TOKEN", "secret"}}))->token, "secret");
}

TEST(RendezvousTest, OnlyRanksOfSeveralHostsUseTheAgentsStore) {
  const Environment agent = With(Torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_TRUE(Parse(agent)->uses_agent_store());
  EXPECT_FALSE(Parse(Torchrun())->uses_agent_store());
  EXPECT_FALSE(Parse(With(agent, {{"LOCAL_WORLD_SIZE", "8"}}))->uses_agent_store());
}

TEST(RendezvousTest, TorchrunsComeFirstThenSlurmsThenOpenMpis) {
  const Environment mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(Parse(With(mpi, Slurm()))->source, "slurm");
  EXPECT_EQ(Parse(With(With(mpi, Slurm()), Torchrun()))->source, "torchrun");
}

}  // namespace
}  // namespace fsdp
