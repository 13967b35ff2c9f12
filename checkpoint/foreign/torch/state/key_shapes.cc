// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/key_shapes.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

bool IsWithin(int64_t dim, absl::Span<const int64_t> dims) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

// True if an optimizer may make a tensor of shape `state` for a parameter of shape `parameter`: with dimensions reduced
// to 1 (row_var), or square (a preconditioner). Of a vector nothing is known: it may count blocks of elements.
bool MayComeFrom(const Shape& state, const Shape& parameter) {
  if (state.rank() <= 1 || state == parameter) return true;
  bool is_reduced = state.rank() == parameter.rank();
  for (int d = 0; is_reduced && d < state.rank(); ++d) {
    is_reduced = state.dim(d) == parameter.dim(d) || state.dim(d) == 1;
  }
  if (is_reduced) return true;
  const absl::Span<const int64_t> dims = parameter.dims();
  return std::all_of(state.dims().begin(), state.dims().end(),
                     [&](int64_t dim) { return dim == 1 || IsWithin(dim, dims); });
}

std::vector<int64_t> DimsOf(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

}  // namespace

KeyShapes::KeyShapes(const TorchLeafTypes& types) : types_(types), states_({{.name = "", .is_exact = true}}) {}

void KeyShapes::AddState(std::string_view key, const std::string& state, int tensor) {
  const auto [at, is_new] = index_.try_emplace(state, static_cast<uint32_t>(states_.size()));
  if (is_new) states_.push_back({.name = state});
  rows_.push_back({key, tensor, at->second});
}

void KeyShapes::Finish() {
  std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.key < b.key; });
}

void KeyShapes::Compare(const std::vector<Shape>& parameters) {
  if (states_.size() == 1) return;
  std::set<std::vector<int64_t>> shapes;
  for (const Shape& shape : parameters) shapes.insert(DimsOf(shape));
  std::vector<bool> is_equal(states_.size(), true);
  std::vector<bool> is_matrix(states_.size(), false);
  for (const Row& row : rows_) {
    const Shape shape = ShapeOf(row);
    is_equal[row.state] = is_equal[row.state] && shapes.count(DimsOf(shape)) != 0;
    is_matrix[row.state] = is_matrix[row.state] || shape.rank() > 1;
  }
  for (size_t i = 1; i < states_.size(); ++i) states_[i].is_exact = is_equal[i] && is_matrix[i];
}

bool KeyShapes::is_flat() const {
  return std::all_of(rows_.begin(), rows_.end(), [&](const Row& row) { return ShapeOf(row).rank() < 2; });
}

std::pair<KeyShapes::Rows, KeyShapes::Rows> KeyShapes::RowsOf(std::string_view key) const {
  const auto first =
      std::lower_bound(rows_.begin(), rows_.end(), key, [](const Row& row, std::string_view k) { return row.key < k; });
  auto end = first;
  while (end != rows_.end() && end->key == key) ++end;
  return {first, end};
}

bool KeyShapes::Fits(std::string_view key, const Shape& shape) const {
  const auto [first, end] = RowsOf(key);
  const auto exact = std::find_if(first, end, [&](const Row& row) { return states_[row.state].is_exact; });
  if (exact != end) return ShapeOf(*exact) == shape;
  return std::all_of(first, end, [&](const Row& row) { return MayComeFrom(ShapeOf(row), shape); });
}

std::string KeyShapes::Describe(std::string_view key) const {
  const auto [first, end] = RowsOf(key);
  if (first == end) return "no state";
  // One that cannot be a vector of blocks tells more.
  const auto at = std::find_if(first, end, [&](const Row& row) { return ShapeOf(row).rank() > 1; });
  const Row& row = at == end ? *first : *at;
  const std::string& name = states_[row.state].name;
  return absl::StrCat("state ", name.empty() ? "" : absl::StrCat(Quote(name), " "), "of shape ",
                      ShapeOf(row).ToString());
}

void KeyShapes::ForEach(const std::function<void(std::string_view key, const Shape& shape)>& use) const {
  const Row* last = nullptr;
  for (const Row& row : rows_) {
    if (last == nullptr || last->key != row.key) use(row.key, ShapeOf(row));
    last = &row;
  }
}

}  // namespace fsdp
