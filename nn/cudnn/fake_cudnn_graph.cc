// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/fake_cudnn_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

using cudnn::DataType;
using cudnn::DescriptorType;
using cudnn::PointwiseMode;
using Index = std::array<int64_t, 4>;
using Values = std::vector<double>;  // of a tensor, its last dimension innermost, whatever its strides

int64_t Numel(const FakeCudnnTensor& t) { return t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3]; }

// Calls `body` for each index of `t`, in the order of its values.
void ForEach(const FakeCudnnTensor& t, const std::function<void(const Index&)>& body) {
  for (int64_t b = 0; b < t.dims[0]; ++b) {
    for (int64_t h = 0; h < t.dims[1]; ++h) {
      for (int64_t r = 0; r < t.dims[2]; ++r) {
        for (int64_t c = 0; c < t.dims[3]; ++c) body({b, h, r, c});
      }
    }
  }
}

int64_t OffsetOf(const FakeCudnnTensor& t, const Index& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset += at[d] * t.strides[d];
  return offset;
}

// The index among the values of `t` that element `at` of a tensor of sizes `dims` reads. In a dimension in which `t` is
// smaller, neighbours share an element: all of them if it has one, the heads of a group if it has several.
size_t PlaceOf(const FakeCudnnTensor& t, const Index& at, const std::vector<int64_t>& dims) {
  int64_t place = 0;
  for (size_t d = 0; d < at.size(); ++d) place = place * t.dims[d] + at[d] / std::max<int64_t>(dims[d] / t.dims[d], 1);
  return static_cast<size_t>(place);
}

DType DTypeOf(DataType dtype) {
  if (dtype == DataType::kBFloat16) return DType::kBFloat16;
  if (dtype == DataType::kHalf) return DType::kFloat16;
  return DType::kFloat32;
}

double Rounded(double value, DataType dtype) {
  const auto single = static_cast<float>(value);
  // Through the dtype and back, because every tensor of the graph rounds, virtual ones too.
  std::byte bits[sizeof(float)];
  float rounded = 0;
  Check(Convert(DType::kFloat32, &single, DTypeOf(dtype), bits, 1).ok(), "fake cuDNN: to a dtype");
  Check(Convert(DTypeOf(dtype), bits, DType::kFloat32, &rounded, 1).ok(), "fake cuDNN: from a dtype");
  return rounded;
}

class Evaluation {
 public:
  explicit Evaluation(const FakeCudnnBindings& bindings) : bindings_(bindings) {}

  void Run(const FakeCudnnOperation& operation) {
    std::vector<Values> operands;
    for (const FakeCudnnTensor& operand : operation.operands) operands.push_back(Load(operand));
    Values result;
    switch (operation.type) {
      case DescriptorType::kOperationMatmul:
        result = Matmul(operation, operands);
        break;
      case DescriptorType::kOperationReduction:
        result = Reduction(operation, operands[0]);
        break;
      case DescriptorType::kOperationReshape:
        result = Reshape(operation, operands[0]);
        break;
      default:
        result = Pointwise(operation, operands);
    }
    Store(operation.result, std::move(result));
  }

 private:
  Values Load(const FakeCudnnTensor& t) const {
    // Fault() has made sure that the operation before has computed it.
    if (t.is_virtual) return virtuals_.at(t.uid);
    if (t.is_by_value) return {static_cast<double>(bindings_.values.at(t.uid))};
    Values values;
    const auto* const memory = static_cast<const std::byte*>(bindings_.addresses.at(t.uid));
    ForEach(t, [&](const Index& at) {
      float value = 0;
      Check(Convert(DTypeOf(t.dtype), memory + OffsetOf(t, at) * SizeOf(DTypeOf(t.dtype)), DType::kFloat32, &value, 1)
                .ok(),
            "fake cuDNN: an operand");
      values.push_back(value);
    });
    return values;
  }

  void Store(const FakeCudnnTensor& t, Values values) {
    for (double& value : values) value = Rounded(value, t.dtype);
    if (t.is_virtual) {
      virtuals_[t.uid] = std::move(values);
      return;
    }
    auto* const memory = static_cast<std::byte*>(bindings_.addresses.at(t.uid));
    size_t i = 0;
    ForEach(t, [&](const Index& at) {
      const auto value = static_cast<float>(values[i++]);
      std::byte* const to = memory + OffsetOf(t, at) * SizeOf(DTypeOf(t.dtype));
      Check(Convert(DType::kFloat32, &value, DTypeOf(t.dtype), to, 1).ok(), "fake cuDNN: a result");
    });
  }

  static Values Matmul(const FakeCudnnOperation& operation, const std::vector<Values>& operands) {
    const FakeCudnnTensor &a = operation.operands[0], &b = operation.operands[1], &c = operation.result;
    Values values;
    ForEach(c, [&](const Index& at) {
      const size_t row = PlaceOf(a, {at[0], at[1], at[2], 0}, {c.dims[0], c.dims[1], c.dims[2], a.dims[3]});
      const size_t column = PlaceOf(b, {at[0], at[1], 0, at[3]}, {c.dims[0], c.dims[1], b.dims[2], c.dims[3]});
      // Double sums: the fake is exact up to the rounding of its result, so tests can compare it with float64.
      double sum = 0;
      for (int64_t k = 0; k < a.dims[3]; ++k) sum += operands[0][row + k] * operands[1][column + k * b.dims[3]];
      values.push_back(sum);
    });
    return values;
  }

  static Values Reduction(const FakeCudnnOperation& operation, const Values& x) {
    const bool is_sum = operation.reduction == cudnn::ReductionOperator::kAdd;
    // The neutral element of each reduction.
    Values values(Numel(operation.result), is_sum ? 0.0 : -std::numeric_limits<double>::infinity());
    size_t i = 0;
    ForEach(operation.operands[0], [&](const Index& at) {
      double& value = values[PlaceOf(operation.result, at, operation.operands[0].dims)];
      value = is_sum ? value + x[i] : std::max(value, x[i]);
      ++i;
    });
    return values;
  }

  // The same memory in another order.
  static Values Reshape(const FakeCudnnOperation& operation, const Values& x) {
    std::map<int64_t, double> by_offset;
    size_t i = 0;
    ForEach(operation.operands[0], [&](const Index& at) { by_offset[OffsetOf(operation.operands[0], at)] = x[i++]; });
    Values values;
    ForEach(operation.result, [&](const Index& at) { values.push_back(by_offset.at(OffsetOf(operation.result, at))); });
    return values;
  }

  static Values Pointwise(const FakeCudnnOperation& operation, const std::vector<Values>& operands) {
    Values values;
    ForEach(operation.result, [&](const Index& at) {
      const auto operand = [&](size_t i) {
        return operands[i][PlaceOf(operation.operands[i], at, operation.result.dims)];
      };
      switch (operation.mode) {
        case PointwiseMode::kAdd:
          return values.push_back(operand(0) + operand(1));
        case PointwiseMode::kMul:
          return values.push_back(operand(0) * operand(1));
        case PointwiseMode::kDiv:
          return values.push_back(operand(0) / operand(1));
        case PointwiseMode::kSub:
          return values.push_back(operand(0) - operand(1));
        case PointwiseMode::kExp:
          return values.push_back(std::exp(operand(0)));
        case PointwiseMode::kLog:
          return values.push_back(std::log(operand(0)));
        case PointwiseMode::kCmpGe:
          return values.push_back(operand(0) >= operand(1) ? 1 : 0);
        case PointwiseMode::kGenIndex:
          return values.push_back(static_cast<double>(at[operation.axis]));
        case PointwiseMode::kBinarySelect:
          return values.push_back(operand(2) != 0 ? operand(0) : operand(1));
      }
    });
    return values;
  }

  const FakeCudnnBindings& bindings_;
  std::map<int64_t, Values> virtuals_;
};

bool IsMatmul(const FakeCudnnOperation& operation) { return operation.type == DescriptorType::kOperationMatmul; }

// A message about sizes that do not match; empty if they do.
std::string SizeFault(const FakeCudnnOperation& operation) {
  const std::vector<int64_t>& out = operation.result.dims;
  const std::vector<int64_t>& in = operation.operands[0].dims;
  if (operation.type == DescriptorType::kOperationReshape) {
    return Numel(operation.operands[0]) == Numel(operation.result) ? "" : "a reshape changes the number of elements";
  }
  if (operation.type == DescriptorType::kOperationMatmul) {
    const std::vector<int64_t>& b = operation.operands[1].dims;
    const bool fits = in[2] == out[2] && b[3] == out[3] && in[3] == b[2] && in[0] == out[0] && b[0] == out[0] &&
                      out[1] % in[1] == 0 && out[1] % b[1] == 0;
    return fits ? "" : "the sizes of a matmul do not fit";
  }
  // A reduction keeps a dimension or divides it; a pointwise operand has the result's size or 1.
  for (size_t d = 0; d < out.size(); ++d) {
    if (operation.type == DescriptorType::kOperationReduction) {
      if (in[d] % out[d] != 0) return "a reduction's result does not divide its operand";
      continue;
    }
    for (const FakeCudnnTensor& operand : operation.operands) {
      if (operand.dims[d] != out[d] && operand.dims[d] != 1) return "the sizes of a pointwise operation do not fit";
    }
  }
  return "";
}

}  // namespace

int64_t FakeCudnnTensor::Extent() const {
  // Strides may leave gaps, so the extent is not the number of elements.
  int64_t last = 0;
  for (size_t d = 0; d < dims.size(); ++d) last += (dims[d] - 1) * strides[d];
  return last + 1;
}

std::string FakeCudnnGraph::Fault() const {
  // cuDNN runs operations in order, so an operand must have been computed before.
  std::set<int64_t> computed;
  for (const FakeCudnnOperation& operation : operations) {
    for (const FakeCudnnTensor& operand : operation.operands) {
      if (operand.is_virtual && computed.count(operand.uid) == 0) {
        return absl::StrCat("virtual tensor ", operand.uid, " is read before it is computed");
      }
    }
    if (!computed.insert(operation.result.uid).second) {
      return absl::StrCat("tensor ", operation.result.uid, " is computed twice");
    }
    if (const std::string fault = SizeFault(operation); !fault.empty()) return fault;
  }
  return operations.empty() ? "no operations" : "";
}

std::map<int64_t, FakeCudnnTensor> FakeCudnnGraph::Bound() const {
  std::map<int64_t, FakeCudnnTensor> bound;
  for (const FakeCudnnOperation& operation : operations) {
    for (const FakeCudnnTensor& operand : operation.operands) {
      if (!operand.is_virtual) bound[operand.uid] = operand;
    }
    if (!operation.result.is_virtual) bound[operation.result.uid] = operation.result;
  }
  return bound;
}

int64_t FakeCudnnGraph::HeadDim() const {
  const auto product = std::find_if(operations.begin(), operations.end(), IsMatmul);
  return product == operations.end() ? 0 : product->operands[0].dims[3];
}

int64_t FakeCudnnGraph::WorkspaceBytes() const {
  const auto product = std::find_if(operations.begin(), operations.end(), IsMatmul);
  // Backward has more than two products; see the header for the sizes.
  const bool is_backward = std::count_if(operations.begin(), operations.end(), IsMatmul) > 2;
  return is_backward ? 2 * product->result.Extent() : 512;
}

void FakeCudnnGraph::Run(const FakeCudnnBindings& bindings) const {
  Evaluation evaluation(bindings);
  for (const FakeCudnnOperation& operation : operations) evaluation.Run(operation);
}

}  // namespace fsdp
