// SPDX-License-Identifier: Apache-2.0
//
// KerasNames: the names that Keras itself gives to the variables of a weights file ("mha/query/kernel"). The file has
// groups by class, numbered, or by attribute, and variables by number:
//
//   /layers/dense_1/vars/0                     the group "vars" has the layer's name as an attribute: "down"
//   /layers/multi_head_attention/query_dense/vars/1
//   /optimizer/vars/0                          iteration, learning rate, then slots (keras_optimizer.h)
//
// The number is the place in the class's order (kernel, bias; gamma, beta, moving_mean, moving_variance). A variable of
// a class whose order is not known, or whose name would not be unique, keeps its path in the file for a name. Names
// begin with the name of the model unless the model is functional, whose layers were made before it. Legacy files (.h5)
// have the names in their paths. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_NAMES_H_
#define FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_NAMES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"

namespace fsdp {

struct KerasVariable {
  size_t dataset = 0;     // in the listing
  std::string name = {};  // of the variable; the path in the file without its first slash if Keras's is not known
  bool is_known = false;  // Keras's name and order are known
  bool is_trainable = true;
  std::string layer = {};  // the name of the layer of the model that it is in
  std::string owner = {};  // the group that has it, below the layer's group: "query_dense"; empty for the layer's own
  int number = 0;          // in its group
};

struct KerasNames {
  std::vector<KerasVariable> model;
  std::vector<size_t> optimizer;  // datasets of /optimizer/vars, by number
  std::vector<size_t> others;     // datasets of optimizers and of states that are no variables of the model
  std::string optimizer_name;     // "adam_w"; empty if unknown
};

// The path of a dataset without the slash that it begins with.
std::string KerasPath(const Hdf5Dataset& dataset);

// `listing` is of a weights file or of a legacy file of Keras.
KerasNames NamesOfKeras(const Hdf5Listing& listing);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_KERAS_KERAS_NAMES_H_
