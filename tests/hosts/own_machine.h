// SPDX-License-Identifier: Apache-2.0
//
// A separate machine for a test program: new user, network, mount and process namespaces, in which it is root and all
// of its processes end with it. For Hosts.
#ifndef FSDP_TESTS_HOSTS_OWN_MACHINE_H_
#define FSDP_TESTS_HOSTS_OWN_MACHINE_H_

#include <string>

namespace fsdp {

// Executes this program again in a machine of its own, with the same arguments; call it first in main. Returns in the
// process that is to run the tests, a child of the machine's first process. Also returns if the kernel forbids it or a
// program is missing; WhyNoOwnMachine then has the reason.
void EnterOwnMachine(char** argv);

// Empty inside of a machine of its own; otherwise the reason for not being in one.
std::string WhyNoOwnMachine();

}  // namespace fsdp

#endif  // FSDP_TESTS_HOSTS_OWN_MACHINE_H_
