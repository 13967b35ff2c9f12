// SPDX-License-Identifier: Apache-2.0
//
// State dicts for tests: every byte of a tensor follows from its name and position, so any part of any tensor can be
// checked by itself.
#ifndef FSDP_CHECKPOINT_STATE_TESTUTIL_H_
#define FSDP_CHECKPOINT_STATE_TESTUTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct TestTensor {
  StateKey key;
  DType dtype = DType::kFloat32;
  Shape shape;
};

// A new tensor of `interval.size()` elements that holds elements `interval` of `tensor`. Bools are 0 or 1;
// floating-point elements are small integers, so all dtypes convert exactly.
Tensor MakeElements(const TestTensor& tensor, const Interval& interval);

// A tensor of each dtype and of each awkward shape: 0-d, empty, fewer rows than ranks, several blocks; with optimizer
// state, odd names and extra values.
std::vector<TestTensor> AwkwardTensors();

// Rank `rank`'s dim-0 chunks, with param_groups, an extra text and an alias.
StateDict ShardedState(const std::vector<TestTensor>& tensors, int world_size, int rank);

// The whole state.
StateDict FullState(const std::vector<TestTensor>& tensors);

// Flat layouts of some of AwkwardTensors, with padding between parameters; the other tensors belong to no unit.
std::vector<FlatUnitLayout> FlatUnits();

// As ShardedState, but tensors in `units` are cut at rank `rank`'s flat shards, and are slices of memory like them.
StateDict LocalState(const std::vector<TestTensor>& tensors, int world_size, int rank,
                     const std::vector<FlatUnitLayout>& units = FlatUnits());

// The state that rank `rank` passes to SaveCheckpoint.
StateDict StateOf(StateDictType type, const std::vector<TestTensor>& tensors, int world_size, int rank);

// As ShardedState, with the same names, dtypes and intervals but separate memory, filled with bytes that no tensor has.
StateDict WantedState(const std::vector<TestTensor>& tensors, int world_size, int rank);

// OK when `state` holds the values of ShardedState.
absl::Status CheckState(const std::vector<TestTensor>& tensors, const StateDict& state);

// A new directory for this test. It is not removed: the test runner owns its parent.
std::string NewTestDirectory();

// Names in a directory, sorted.
std::vector<std::string> ListNames(const std::string& directory);

void WriteAll(const std::string& path, const std::string& bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STATE_TESTUTIL_H_
