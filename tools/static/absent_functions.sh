#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Writes C++: a weak function that returns 0 for each function that LIBCURL wants of a library that is not linked.
#
#   absent_functions.sh LIBCURL.a
#
# A new release may want others; a function of another library is still an error of the link, with its name.
set -eu
nm --undefined-only "$1" 2>/dev/null |
  grep -oE '\b(Brotli|GSS_|RTMP_|ber_|gss_|idn2_|ldap_|libssh2_|nghttp2_|psl_)[A-Za-z0-9_]+' | sort -u |
  sed 's/.*/extern "C" __attribute__((weak)) long &() { return 0; }/'
