// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/forward_orders.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fsdp {

ForwardOrders::ForwardOrders(const Module& root, const UnitStore& units)
    : root_(root), units_(units), orders_{{&root, {units.registration_order(), {}}}} {}

void ForwardOrders::Begin() {
  visits_.clear();
  calls_.clear();
}

void ForwardOrders::Enter(int index) {
  visits_.push_back({index, /*enter=*/true});
  calls_[index].push_back(0);
}

void ForwardOrders::Call(int index) { ++calls_[index].back(); }

void ForwardOrders::Leave(int index) { visits_.push_back({index, /*enter=*/false}); }

void ForwardOrders::End(const Module& opener, bool training) {
  Order& order = orders_[&opener];
  order.visits = visits_;
  if (!training) return;  // it may run between a forward and its backward
  order.uneven_calls.clear();
  for (const auto& [index, calls] : calls_) {
    const int modules = static_cast<int>(units_.ModulesOf(index).size());
    if (std::all_of(calls.begin(), calls.end(), [&](int count) { return count == modules; })) continue;
    order.uneven_calls[index] = std::accumulate(calls.begin(), calls.end(), 0);
  }
}

std::vector<UnitVisit> ForwardOrders::Forward(const Module& opener) const {
  const auto known = orders_.find(&opener);
  if (known != orders_.end()) return known->second.visits;
  std::vector<UnitVisit> visits;
  const std::vector<UnitVisit>& all = orders_.at(&root_).visits;
  const int index = units_.ScheduledIndexOf(opener);
  const auto is_visit = [index](const UnitVisit& visit) { return visit.unit == index; };
  const auto begin = std::find_if(all.begin(), all.end(), is_visit);  // enters it, and the next visit leaves it
  const auto end = begin == all.end() ? begin : std::find_if(begin + 1, all.end(), is_visit);
  if (end != all.end()) visits.assign(begin, end + 1);
  return visits;
}

std::vector<UnitVisit> ForwardOrders::Backward(const Module& opener) const {
  std::vector<UnitVisit> visits = Forward(opener);
  const auto known = orders_.find(&opener);
  if (known == orders_.end()) return visits;
  for (const auto& [unit, calls] : known->second.uneven_calls) {
    const auto is_unit = [unit = unit](const UnitVisit& visit) { return visit.unit == unit; };
    const auto first = std::find_if(visits.begin(), visits.end(), is_unit);
    const auto last = std::find_if(visits.rbegin(), visits.rend(), is_unit);
    if (first == visits.end() || &*first == &*last) continue;
    visits.erase(std::remove_if(first + 1, last.base() - 1, is_unit), last.base() - 1);
  }
  return visits;
}

int ForwardOrders::BackwardCalls(const Module& opener, int index) const {
  if (const auto known = orders_.find(&opener); known != orders_.end()) {
    const auto calls = known->second.uneven_calls.find(index);
    if (calls != known->second.uneven_calls.end()) return calls->second;
  }
  return static_cast<int>(units_.ModulesOf(index).size());
}

}  // namespace fsdp
