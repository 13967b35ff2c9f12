// SPDX-License-Identifier: Apache-2.0
//
// A machine of its own for a test program: new user, network, mount and process namespaces, in which it is root and all
// of its processes end with it. For Hosts.
#ifndef FSDP_TESTS_HOSTS_OWN_MACHINE_H_
#define FSDP_TESTS_HOSTS_OWN_MACHINE_H_

#include <string>

namespace fsdp {

// Executes this program again in a machine of its own, with the same arguments; to be called first in main. Returns in
// the process that is to run the tests, a child of the machine's first process, and also where the kernel forbids it or
// a program is missing, which WhyNoOwnMachine then says.
void EnterOwnMachine(char** argv);

// Empty inside of a machine of its own; else the reason for not being in one.
std::string WhyNoOwnMachine();

}  // namespace fsdp

#endif  // FSDP_TESTS_HOSTS_OWN_MACHINE_H_
