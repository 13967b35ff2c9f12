// SPDX-License-Identifier: Apache-2.0
//
// The lists in Slurm's environment variables. Pure functions of their text.
#ifndef FSDP_COLLECTIVES_JOB_SLURM_LISTS_H_
#define FSDP_COLLECTIVES_JOB_SLURM_LISTS_H_

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The first host of a hostlist expression: "node[03-07,12]-ib,other" -> "node03-ib", "rack[1-2]n[5,7]" -> "rack1n5".
// Empty if a bracket is not closed or is empty.
std::string FirstSlurmHost(std::string_view list);

// The number of tasks on node `node` in a list such as "2(x3),1": two on each of three nodes, then one on one node. -1
// if the list is malformed or too short.
int SlurmTasksOfNode(std::string_view list, int node);

// The ports in a list such as "12000-12003,12010", as SLURM_STEP_RESV_PORTS has them; at most the first 16. Empty if
// the list is malformed or a port is out of range.
std::vector<int> SlurmPorts(std::string_view list);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_SLURM_LISTS_H_
