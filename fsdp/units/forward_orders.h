// SPDX-License-Identifier: Apache-2.0
//
// ForwardOrders: in which order a forward visited units, and how often it called their modules. The next pass is
// planned from it, and backward, which calls modules as often as forward did, knows from it when a unit is done.
#ifndef FSDP_FSDP_UNITS_FORWARD_ORDERS_H_
#define FSDP_FSDP_UNITS_FORWARD_ORDERS_H_

#include <map>
#include <vector>

#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Units are named by their index in schedules. A unit of one module is visited by each call of it. A visit of a unit of
// several modules may have any number of calls.
class ForwardOrders {
 public:
  // Begins with the order in which modules are registered. Both must outlive it.
  ForwardOrders(const Module& root, const UnitStore& units);

  // A forward: Begin, then Enter, Call and Leave of the units that it visits, then End, which makes it the last forward
  // that `opener` opened. A forward without End changes nothing. `training`: a backward follows.
  void Begin();
  void Enter(int index);
  void Call(int index);
  void Leave(int index);
  void End(const Module& opener, bool training);

  // True if a forward that `opener` opened has ended.
  bool HasEnded(const Module& opener) const { return orders_.count(&opener) != 0; }

  // The visits of the next forward that `opener` opens, by the last one, or by the root's if there was none.
  std::vector<UnitVisit> Forward(const Module& opener) const;

  // Likewise the visits of forward that the next backward reverses: a unit whose modules were not called once for each
  // visit, such as a head that is called for each chunk of a loss, has one visit there, from its first to its last.
  std::vector<UnitVisit> Backward(const Module& opener) const;

  // After how many backwards of its modules a visit of the unit ends in a backward that `opener` opens.
  int BackwardCalls(const Module& opener, int index) const;

 private:
  struct Order {
    std::vector<UnitVisit> visits;
    std::map<int, int> uneven_calls;  // in the last training forward, of the units with one visit in backward
  };

  const Module& root_;
  const UnitStore& units_;
  std::map<const Module*, Order> orders_;  // by the module that opened the forward
  std::vector<UnitVisit> visits_;          // of the current forward
  std::map<int, std::vector<int>> calls_;  // by unit: of each of its visits
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_FORWARD_ORDERS_H_
