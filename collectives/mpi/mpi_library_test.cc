// SPDX-License-Identifier: Apache-2.0
//
// The errors for a libfsdp_mpi.so that cannot be used. //tests/mpi uses a valid one.
#include "fsdp/collectives/mpi/mpi_library.h"

#include <string>

#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MpiLibraryTest, AnAbsentLibraryIsNamedWithWhatMakesIt) {
  EXPECT_THAT(LoadMpiFrom("/absent/libfsdp_mpi.so"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("backend mpi: libfsdp_mpi.so cannot be loaded: /absent/libfsdp_mpi.so: "),
                             HasSubstr("libopenmpi-dev"), HasSubstr("mpi_functions.c"))));
}

TEST(MpiLibraryTest, AnotherLibraryIsNotTakenForIt) {
  EXPECT_THAT(LoadMpiFrom("libm.so.6"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "backend mpi: libm.so.6 has no FsdpMpiFunctions: it is not libfsdp_mpi.so"));
}

TEST(MpiLibraryTest, ALibraryOfAnotherVersionIsRefused) {
  ASSERT_OK_AND_ASSIGN(const std::string path, FindRunfile("collectives/mpi/libfsdp_mpi_of_another_version.so"));
  EXPECT_THAT(LoadMpiFrom(path), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("is of version 2, this program wants version 1")));
}

TEST(MpiLibraryTest, AProcessThatHasNotStartedMpiCallsNothingOfIt) { EXPECT_FALSE(CanCallMpi()); }

}  // namespace
}  // namespace fsdp
