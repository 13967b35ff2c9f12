// SPDX-License-Identifier: Apache-2.0
//
// TorchObjects: the objects in a tree that are neither tensors nor plain values, because only their Python class could
// read them (pickle/inert_globals.h), and tensors in forms that are not read. A program must either refuse the tree,
// with the name of each, or take them out of it and report that; a tensor only from outside of the model, unless the
// caller goes without weights. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_OBJECTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_OBJECTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_place.h"

namespace fsdp {

struct TorchObject {
  std::string path;    // "args.out", by the names of dicts and the indices of lists; "" for the whole tree
  std::string global;  // "pathlib.PosixPath"
  int64_t place = 0;   // the byte of its pickle
  std::string what;    // not empty: describes, in place of the two above, a value without a form here
  bool is_tensor = false;
  bool is_too_large = false;
  std::vector<std::string> keys;  // is_tensor: of the dicts and lists of the tree around it, and its own

  // `an object of "pathlib.PosixPath"`.
  std::string Kind() const;

  // `"args.out" (an object of "pathlib.PosixPath", byte 57 of the pickle: a path: save str(path))`.
  std::string ToString() const;
};

// Takes every object out of `root`: a member of a dict or set is removed, and an element of a list or tuple becomes
// None, so that the others keep their indices. A value that is a call with an object among its arguments counts as that
// object. In the order of the tree.
std::vector<TorchObject> TakeObjects(TorchNode& root);

// The error that names `objects`, of which there is at least one, and the options that leave them out:
// kInvalidArgument, or kResourceExhausted if all are values that are too large.
absl::Status RefuseObjects(const std::vector<TorchObject>& objects);

// kInvalidArgument names the tensors of `objects` that are in a model of the tree at `top`, which has `models` of them,
// or in a dict with the usual name of one, and the option that leaves them out. A tree without a model may have its
// weights in such forms.
absl::Status CheckHoldsNoWeights(const std::vector<TorchObject>& objects, const TreePlace& top, int models);

// `objects` for TensorSource::left_out: at most 100, and the number of the others.
std::vector<std::string> DescribeObjects(const std::vector<TorchObject>& objects);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_OBJECTS_H_
