// SPDX-License-Identifier: Apache-2.0
//
// HostLayout: the host of each rank of a group. A value, and a pure function of the ranks' host identities.
#ifndef FSDP_COLLECTIVES_NET_HOST_LAYOUT_H_
#define FSDP_COLLECTIVES_NET_HOST_LAYOUT_H_

#include <string>
#include <vector>

namespace fsdp {

class HostLayout {
 public:
  // `identities`: by rank; ranks with equal identities are on one host. At least one rank. Hosts are numbered in the
  // order of their lowest rank.
  static HostLayout Of(const std::vector<std::string>& identities);

  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_on_.size()); }
  int host_of(int rank) const { return host_of_[rank]; }

  // Ascending. Valid as long as the layout.
  const std::vector<int>& ranks_on(int host) const { return ranks_on_[host]; }

  // True if every host has equally many ranks and these are consecutive: rank = host * ranks_per_host + local rank.
  // Then the slices of a host's ranks are one block of a tensor, and the sum over ranks in order is one over hosts in
  // order.
  bool is_regular() const;

  // REQUIRES: is_regular(). A column is the ranks with one local rank, by host.
  int ranks_per_host() const { return size() / hosts(); }
  std::vector<int> Column(int rank) const;

  // The layout of `members`, ranks of this one, in their new order.
  HostLayout Part(const std::vector<int>& members) const;

  // "2 hosts with 4 ranks each", "3 hosts with 2, 2, 1 ranks", "2 hosts whose ranks alternate"
  std::string ToString() const;

  bool operator==(const HostLayout&) const = default;

 private:
  std::vector<int> host_of_;
  std::vector<std::vector<int>> ranks_on_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_HOST_LAYOUT_H_
