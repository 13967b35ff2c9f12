// SPDX-License-Identifier: Apache-2.0
//
// StoredTensors: the tensors of a DeepSpeed checkpoint by number, wherever their elements are:
//
//   views        whole tensors of one file: buffers, frozen parameters, steps; all of ZeRO 0 and of a universal one
//   parameters   elements of flat tensors of all ranks (flat_space.h), one tensor for each state: fp32, exp_avg, ...
//
// Views are added first, file by file, then the parameters. Files stay closed until they are read, and then only some
// of them are open at a time. Reads are thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_STORED_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_STORED_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_values.h"
#include "fsdp/checkpoint/foreign/deepspeed/flat_space.h"
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

class StoredTensors {
 public:
  StoredTensors(const std::string& directory, const TensorSourceOptions& options)
      : directory_(directory), pool_(directory, options) {}

  // Opens file `name` of the directory for its metadata; its tensors can be views from then on. `number` is what Add
  // and FlatRun::file call it. Errors name the file; kDataLoss for one that was saved under another name.
  absl::StatusOr<std::unique_ptr<TorchFile>> OpenFile(const std::string& name, const TensorSourceOptions& options,
                                                      uint32_t* number);

  // The number of a view of tensor `index` of `opened`: equal for equal views of one storage. `shape`: another shape of
  // as many elements, for a flat tensor.
  int AddView(uint32_t file, const TorchFile& opened, int index, const Shape* shape = nullptr);

  // The number of view `view` with its elements as float32.
  int AddWidened(int view);

  // `node`, of `opened`, with the numbers of views. Consumes it.
  TorchNode Import(uint32_t file, const TorchFile& opened, TorchNode& node);

  // The run of a flat, contiguous tensor of `opened`; nullopt for another tensor.
  static std::optional<FlatRun> RunOf(uint32_t file, const TorchFile& opened, int index);

  // The bytes of a tensor without dimensions of `opened`. Errors of the file.
  static absl::StatusOr<std::string> ScalarBytes(const TorchFile& opened, int index);

  // Adds parameters: `spaces` are their states, in each of which a parameter has the same offset. kDataLoss names a
  // parameter of which a state is only in some files. Call it once, after the last view.
  absl::Status SetParameters(NamedShapes parameters, std::vector<int64_t> offsets, std::vector<std::string> states,
                             std::vector<FlatSpace> spaces);
  // The number of state `state` of parameter `parameter`; nullopt if it does not have that state.
  std::optional<int> StateOf(size_t parameter, size_t state) const;

  // By number, for StateOfTree. Equal views have one identity.
  TorchLeafTypes types() const;
  TorchLeafType type(int i) const;
  int64_t size() const;

  absl::Status Read(int i, const Interval& interval, std::byte* out) const;

  // TensorViews::Storage of a view; nullopt for a parameter.
  std::optional<TensorStorage> Storage(int i) const;
  // TensorSource::Places.
  absl::StatusOr<std::vector<TensorPlace>> Places(int i) const;

  std::vector<std::string> files() const;
  FilePool& pool() const { return pool_; }

 private:
  struct View {
    uint32_t file = 0;
    uint32_t storage = 0;
    int64_t byte = 0;  // in the file, of the first element
    int64_t storage_bytes = 0;
    int64_t touched_bytes = 0;
    DType dtype = DType::kFloat32;
    Shape shape;
    absl::InlinedVector<int64_t, 4> strides;
    bool is_widened = false;  // read as float32
    TorchWrapper wrapper = {};
  };
  // Reads a view in its own dtype, or as float32.
  absl::Status ReadView(const View& view, const Interval& interval, std::byte* out) const;
  absl::Status ReadWidened(const View& view, const Interval& interval, std::byte* out) const;

  using ViewKey = std::tuple<uint32_t, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;

  const std::string directory_;
  mutable FilePool pool_;  // has its own lock
  std::vector<std::string> files_;
  std::vector<View> views_;
  std::map<ViewKey, int> numbers_;  // while views are added
  NamedShapes parameters_;
  std::vector<int64_t> offsets_;
  std::vector<FlatSpace> spaces_;
  std::vector<std::vector<std::optional<DType>>> dtypes_;  // by space and parameter; nullopt: it is not there
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_STORED_TENSORS_H_
