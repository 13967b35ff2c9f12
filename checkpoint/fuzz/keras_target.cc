// SPDX-License-Identifier: Apache-2.0
//
// The input is the listing of an HDF5 file, as its confined process writes it, a NUL, and the config of the model.
#include <string>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"
#include "fsdp/checkpoint/foreign/keras/keras_names.h"
#include "fsdp/checkpoint/foreign/keras/keras_optimizer.h"
#include "fsdp/checkpoint/fuzz/fuzz_targets.h"

namespace fsdp {

bool FuzzKeras(std::string_view bytes) {
  const size_t nul = bytes.find('\0');
  if (nul == bytes.npos) return false;
  const absl::StatusOr<Hdf5Listing> listing = DecodeHdf5Listing(bytes.substr(0, nul));
  if (!listing.ok()) return false;
  const KerasNames names = NamesOfKeras(*listing);
  std::vector<int> uses(listing->datasets.size());
  const auto use = [&](size_t dataset) {
    Check(dataset < uses.size(), "a name is of no dataset");
    ++uses[dataset];
  };
  for (const KerasVariable& variable : names.model) use(variable.dataset);
  for (const size_t dataset : names.optimizer) use(dataset);
  for (const size_t dataset : names.others) use(dataset);
  const absl::StatusOr<std::vector<KerasSlot>> slots = SlotsOfKeras(bytes.substr(nul + 1), *listing, names);
  if (!slots.ok()) return false;
  for (const KerasSlot& slot : *slots) Check(slot.dataset < uses.size(), "a slot is no dataset");
  for (const int count : uses) Check(count <= 1, "a dataset has two names");
  return true;
}

}  // namespace fsdp
