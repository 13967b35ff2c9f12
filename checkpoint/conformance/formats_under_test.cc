// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/conformance/formats_under_test.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_driver.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The subset of `tensors` that the format of the running test can hold.
std::vector<TestTensor> Held(std::vector<TestTensor> tensors) {
  const FormatUnderTest& format = FormatTest::GetParam();
  const auto is_refused = [&](const TestTensor& tensor) {
    return format.refused.count(tensor.dtype) != 0 || !format.holds(tensor.key);
  };
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(), is_refused), tensors.end());
  return tensors;
}

// DeepSpeed's folders have the names of parameters.
bool IsNoFolder(const StateKey& key) {
  return key.section != StateKey::Section::kExtra && !CheckFileName(key.fqn).ok();
}

// Megatron-Core has plain values besides the model, and state only of parameters that are there.
bool IsNotMegatrons(const StateKey& key) {
  return key.section == StateKey::Section::kExtra || key == StateKey::OptimState("a/b", "exp/avg");
}

// Reads `tensor` whole and compares it, if the source has it with this dtype and shape.
absl::Status CompareTensor(const TensorSource& source, const TestTensor& tensor) {
  const ShardedTensor* const held = source.contents().FindTensor(tensor.key);
  if (held == nullptr || held->dtype != tensor.dtype || held->shape != tensor.shape) return absl::OkStatus();
  const Interval whole = {0, tensor.shape.numel()};
  const Tensor expected = MakeElements(tensor, whole);
  std::vector<char> bytes(expected.nbytes());
  FSDP_RETURN_IF_ERROR(source.Read(tensor.key, whole, bytes.data()));
  if (std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(tensor.key.ToString(), " is read without an error and has other elements"));
}

}  // namespace

std::vector<FormatUnderTest> FormatsUnderTest() {
  const std::set<DType> not_in_safetensors = {DType::kComplex32, DType::kComplex128};
  const std::set<DType> not_in_npz = {DType::kComplex32,      DType::kFloat8E4M3FN,   DType::kFloat8E5M2,
                                      DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU,
                                      DType::kFloat4E2M1FNx2};
  std::set<DType> not_in_gguf(AllDTypes().begin(), AllDTypes().end());
  for (const DType held : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt64,
                           DType::kInt32, DType::kInt16, DType::kInt8}) {
    not_in_gguf.erase(held);
  }
  return {
      {"Full", "full"},
      {"ShardedParity", "sharded", Hdf5Target{StateDictType::kSharded, 3, 1}},
      {"Local", "local", Hdf5Target{StateDictType::kLocal, 2}},
      {.name = "Hdf5File", .destination = "full", .part = "/checkpoint.h5", .reader = &Hdf5FileDriver()},
      {.name = "PlainHdf5", .destination = "model.h5", .reader = &Hdf5FileDriver()},
      {"SafetensorsFile", "model.safetensors", SafetensorsTarget(), not_in_safetensors},
      {"SafetensorsDirectory", "model", SafetensorsTarget{.max_shard_size = 1000}, not_in_safetensors},
      {"TorchFile", "model.pt", TorchTarget()},
      {"DcpDirectory", "dcp", DcpTarget{.world_size = 2}},
      {"Npz", "model.npz", NpzTarget(), not_in_npz},
      {"Gguf", "model.gguf", GgufTarget(), not_in_gguf},
      {.name = "DeepSpeed",
       .destination = "deepspeed",
       .target = DeepSpeedTarget(),
       .lacks = IsNoFolder,
       .state_is_like_parameters = true,
       .unknown_step = 0},
      {.name = "Megatron",
       .destination = "megatron",
       .target = MegatronTarget(),
       .lacks = IsNotMegatrons,
       .state_is_like_parameters = true},
  };
}

std::vector<FormatUnderTest> WrittenFormatsUnderTest() {
  std::vector<FormatUnderTest> formats = FormatsUnderTest();
  formats.erase(std::remove_if(formats.begin(), formats.end(),
                               [](const FormatUnderTest& format) { return !format.is_written(); }),
                formats.end());
  return formats;
}

std::string NameOfFormat(const testing::TestParamInfo<FormatUnderTest>& info) { return info.param.name; }

std::map<std::string, std::string> BytesOf(const std::string& path) {
  std::map<std::string, std::string> bytes;
  if (fs::is_regular_file(path)) bytes[""] = ReadFile(path);
  if (!fs::is_directory(path)) return bytes;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const std::string file = entry.path();
    if (entry.is_regular_file()) bytes[file.substr(path.size())] = ReadFile(file);
  }
  return bytes;
}

std::vector<TestTensor> FormatTest::LargeTensors() { return Held(AwkwardTensors()); }

std::vector<TestTensor> FormatTest::SmallTensors() {
  return Held({{StateKey::Model("wte.weight"), DType::kFloat32, {16, 8}},
               {StateKey::Model("half"), DType::kBFloat16, {5, 3}},
               {StateKey::Model("mask"), DType::kBool, {7}},
               {StateKey::Model("scalar"), DType::kFloat64, {}},
               {StateKey::Model("empty"), DType::kInt32, {0, 3}},
               {StateKey::Model("ids"), DType::kInt64, {4, 2, 3}},
               {StateKey::OptimState("wte.weight", "exp_avg"), DType::kFloat32, {16, 8}}});
}

absl::Status FormatTest::Write(const StateDict& state, const PayloadReader& read,
                               const FormatWriteOptions& options) const {
  const std::unique_ptr<FormatWriter> writer = MakeWriter(GetParam().target);
  FormatContents contents = {.state = state, .step = 7};
  FSDP_RETURN_IF_ERROR(writer->Fit(contents).status());
  return writer->Write(destination(), contents, read, options);
}

void FormatTest::MustWrite(const std::vector<TestTensor>& tensors, const FormatWriteOptions& options) const {
  StateDict state = FullState(tensors);
  if (state.FindTensor(StateKey::Model("wte.weight")) == nullptr) state.aliases.clear();
  state.units.clear();
  ASSERT_OK(Write(state, ReadFromMemory(state), options));
}

absl::Status FormatTest::ReadAll(const std::vector<TestTensor>& tensors) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, Open());
  for (const TestTensor& tensor : tensors) FSDP_RETURN_IF_ERROR(CompareTensor(*source, tensor));
  return VerifyRest(*source);
}

bool IsErrorOfAFile(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:  // written by a later release
      return true;
    default:
      return false;
  }
}

}  // namespace fsdp
