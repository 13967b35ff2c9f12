// SPDX-License-Identifier: Apache-2.0
//
// Operations of any axes are operations on rows, once the dimensions before an axis and behind it are one each.
#include "fsdp/checkpoint/recipe/arranged_tensor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/recipe/arranged_rows.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr int64_t kScratchBytes = int64_t{1} << 20;

using Input = ArrangedInput;

int64_t Product(absl::Span<const int64_t> dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

class SourceTensor final : public ArrangedTensor {
 public:
  SourceTensor(const TensorSource& source, StateKey key) : source_(source), key_(std::move(key)) {}

  absl::Status Read(const Interval& interval, std::byte* out) const override {
    return source_.Read(key_, interval, out);
  }

 private:
  const TensorSource& source_;
  const StateKey key_;
};

class CastTensor final : public ArrangedTensor {
 public:
  explicit CastTensor(Input input) : input_(std::move(input)) {}

  absl::Status Read(const Interval& interval, std::byte* out) const override {
    const int64_t size = SizeOf(input_->dtype);
    std::vector<std::byte> scratch(std::min(kScratchBytes, interval.size() * size));
    const int64_t step = std::max<int64_t>(std::ssize(scratch) / size, 1);
    for (int64_t begin = interval.begin; begin < interval.end; begin += step) {
      const Interval part = {begin, std::min(interval.end, begin + step)};
      FSDP_RETURN_IF_ERROR(input_->Read(part, scratch.data()));
      FSDP_RETURN_IF_ERROR(
          Convert(input_->dtype, scratch.data(), dtype, out + (begin - interval.begin) * SizeOf(dtype), part.size()));
    }
    return absl::OkStatus();
  }

 private:
  const Input input_;
};

absl::Status DoesNotFit(const std::string& what) { return absl::InvalidArgumentError(what); }

// A tensor without elements is never read, so that its rows may have any width.
std::unique_ptr<ArrangedTensor> Made(std::unique_ptr<ArrangedTensor> tensor, DType dtype, Shape shape) {
  tensor->dtype = dtype;
  tensor->shape = std::move(shape);
  return tensor;
}

class Arranger {
 public:
  explicit Arranger(const TensorSource& source) : source_(source) {}

  absl::StatusOr<Input> Run(const RecipeExpression& expression) const {
    if (expression.op == RecipeOp::kSource) return Source(expression.name);
    std::vector<Input> inputs;
    for (const RecipeExpression& input : expression.inputs) {
      FSDP_ASSIGN_OR_RETURN(inputs.emplace_back(), Run(input));
    }
    switch (expression.op) {
      case RecipeOp::kStack:
      case RecipeOp::kConcat:
        return Join(expression, std::move(inputs));
      case RecipeOp::kChunk:
      case RecipeOp::kSlice:
        return Cut(expression, std::move(inputs[0]));
      case RecipeOp::kReshape:
        return Reshape(expression, std::move(inputs[0]));
      case RecipeOp::kCast:
        return Cast(expression, std::move(inputs[0]));
      default:
        return Swap(expression, std::move(inputs[0]));
    }
  }

 private:
  absl::StatusOr<Input> Source(const std::string& name) const {
    const StateDict& contents = source_.contents();
    const auto alias = contents.aliases.find(name);
    const StateKey key = StateKey::Model(alias == contents.aliases.end() ? name : alias->second);
    const ShardedTensor* const tensor = contents.FindTensor(key);
    if (tensor == nullptr) return DoesNotFit(absl::StrCat("the model has no tensor ", Quote(name)));
    return Made(std::make_unique<SourceTensor>(source_, key), tensor->dtype, tensor->shape);
  }

  // The axis from the front, of `rank` ones.
  static absl::StatusOr<int> Axis(int64_t axis, int rank) {
    const int64_t from_front = axis < 0 ? axis + rank : axis;
    if (from_front >= 0 && from_front < rank) return static_cast<int>(from_front);
    return DoesNotFit(absl::StrCat("axis ", axis, " of ", rank, " dimensions"));
  }

  static absl::StatusOr<Input> Join(const RecipeExpression& expression, std::vector<Input> inputs) {
    const bool is_stack = expression.op == RecipeOp::kStack;
    const Shape first = inputs[0]->shape;
    FSDP_ASSIGN_OR_RETURN(const int axis, Axis(expression.axis, first.rank() + (is_stack ? 1 : 0)));
    std::vector<int64_t> dims(first.dims().begin(), first.dims().end());
    const int64_t inner = Product(first.dims().subspan(is_stack ? axis : axis + 1));
    std::vector<int64_t> widths;
    int64_t length = 0;
    for (const Input& input : inputs) {
      std::vector<int64_t> wanted = dims;
      if (!is_stack && input->shape.rank() == first.rank()) wanted[axis] = input->shape.dim(axis);
      if (input->dtype != inputs[0]->dtype || input->shape != *Shape::Create(wanted)) {
        return DoesNotFit(absl::StrCat(std::string(DTypeName(input->dtype)), " ", input->shape.ToString(),
                                       " does not fit ", std::string(DTypeName(inputs[0]->dtype)), " ",
                                       first.ToString(), " along axis ", axis));
      }
      const int64_t size = is_stack ? 1 : input->shape.dim(axis);
      widths.push_back(size * inner);
      length += size;
    }
    is_stack ? void(dims.insert(dims.begin() + axis, length)) : void(dims[axis] = length);
    FSDP_ASSIGN_OR_RETURN(Shape shape, Shape::Create(dims));
    const DType dtype = inputs[0]->dtype;
    return Made(JoinRows(std::move(inputs), std::move(widths)), dtype, std::move(shape));
  }

  static absl::StatusOr<Input> Cut(const RecipeExpression& expression, Input input) {
    const Shape whole = input->shape;
    FSDP_ASSIGN_OR_RETURN(const int axis, Axis(expression.axis, whole.rank()));
    const int64_t size = whole.dim(axis);
    Interval part = {expression.begin, expression.end};
    if (expression.op == RecipeOp::kChunk) {
      const int64_t count = expression.count;
      if (count < 1 || size % count != 0 || expression.index < 0 || expression.index >= count) {
        return DoesNotFit(absl::StrCat("chunk ", expression.index, " of ", count, " of axis ", axis, " of ",
                                       whole.ToString(), ", which it does not divide"));
      }
      part = {expression.index * (size / count), (expression.index + 1) * (size / count)};
    }
    if (part.begin < 0 || part.begin > part.end || part.end > size) {
      return DoesNotFit(absl::StrCat("slice ", part.ToString(), " of axis ", axis, " of ", whole.ToString()));
    }
    std::vector<int64_t> dims(whole.dims().begin(), whole.dims().end());
    dims[axis] = part.size();
    FSDP_ASSIGN_OR_RETURN(Shape shape, Shape::Create(dims));
    const int64_t inner = Product(whole.dims().subspan(axis + 1));
    const DType dtype = input->dtype;
    return Made(CutRows(std::move(input), size * inner, part.begin * inner, part.size() * inner), dtype,
                std::move(shape));
  }

  static absl::StatusOr<Input> Reshape(const RecipeExpression& expression, Input input) {
    FSDP_ASSIGN_OR_RETURN(Shape shape, Shape::Create(expression.shape));
    if (shape.numel() != input->shape.numel()) {
      return DoesNotFit(absl::StrCat(input->shape.ToString(), " cannot have the shape ", shape.ToString()));
    }
    input->shape = std::move(shape);
    return input;
  }

  static absl::StatusOr<Input> Cast(const RecipeExpression& expression, Input input) {
    if (!IsFloatingPoint(expression.dtype) || !IsFloatingPoint(input->dtype)) {
      return DoesNotFit(absl::StrCat("cast of ", std::string(DTypeName(input->dtype)), " to ",
                                     std::string(DTypeName(expression.dtype)), ": only floats are cast"));
    }
    Shape shape = input->shape;
    return Made(std::make_unique<CastTensor>(std::move(input)), expression.dtype, std::move(shape));
  }

  static absl::StatusOr<Input> Swap(const RecipeExpression& expression, Input input) {
    Shape shape = input->shape;
    FSDP_ASSIGN_OR_RETURN(const SwapShape sizes, SizesOf(expression, shape));
    if (expression.op == RecipeOp::kTranspose) {
      std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
      std::swap(dims[*Axis(expression.axis, shape.rank())], dims[*Axis(expression.second_axis, shape.rank())]);
      FSDP_ASSIGN_OR_RETURN(shape, Shape::Create(dims));
    }
    const DType dtype = input->dtype;
    return Made(SwapAxes(std::move(input), sizes), dtype, std::move(shape));
  }

  static absl::StatusOr<SwapShape> SizesOf(const RecipeExpression& expression, const Shape& shape) {
    const absl::Span<const int64_t> dims = shape.dims();
    if (expression.op == RecipeOp::kTranspose) {
      FSDP_ASSIGN_OR_RETURN(const int one, Axis(expression.axis, shape.rank()));
      FSDP_ASSIGN_OR_RETURN(const int two, Axis(expression.second_axis, shape.rank()));
      const int a = std::min(one, two);
      const int b = std::max(one, two);
      if (a == b) return SwapShape{.inner = shape.numel()};
      return SwapShape{.outer = Product(dims.subspan(0, a)),
                       .a = dims[a],
                       .middle = Product(dims.subspan(a + 1, b - a - 1)),
                       .b = dims[b],
                       .inner = Product(dims.subspan(b + 1))};
    }
    const bool is_rope = expression.op == RecipeOp::kRopePermute;
    FSDP_ASSIGN_OR_RETURN(const int axis, Axis(is_rope ? 0 : expression.axis, shape.rank()));
    const int64_t groups = is_rope ? expression.heads : 1;
    if (groups < 1 || dims[axis] % (2 * groups) != 0) {
      return DoesNotFit(absl::StrCat("axis ", axis, " of ", shape.ToString(), " is not divided by ", 2 * groups,
                                     is_rope ? ", two halves of each head" : ""));
    }
    const int64_t half = dims[axis] / (2 * groups);
    return SwapShape{.outer = Product(dims.subspan(0, axis)) * groups,
                     .a = expression.is_inverse ? 2 : half,
                     .b = expression.is_inverse ? half : 2,
                     .inner = Product(dims.subspan(axis + 1))};
  }

  const TensorSource& source_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ArrangedTensor>> Arrange(const RecipeExpression& expression,
                                                        const TensorSource& source) {
  return Arranger(source).Run(expression);
}

}  // namespace fsdp
