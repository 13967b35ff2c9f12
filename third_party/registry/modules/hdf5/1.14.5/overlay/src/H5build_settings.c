/* SPDX-License-Identifier: Apache-2.0 */
/* What H5check_version prints of the build; CMake generates it. */
#include "H5private.h"

const char H5build_settings[] = "HDF5 1.14.5, built by Bazel with the deflate filter\n";
