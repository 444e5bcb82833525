// einsum: products of operands summed over letters, two operands at a time as batched products.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "core/ops/linalg.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
constexpr char kFirstHidden = 1;  // dims that "..." stands for, the last of them first: 1, 2, ..

// The equation: letters of each operand and of the result. A dot stands for "...".
struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};

std::string letters_of(std::string_view text, std::string_view equation) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    const bool dots = text.substr(i, 3) == "...";
    MUSTER_CHECK((dots && out.find('.') == std::string::npos) ||
                     std::isalpha(static_cast<unsigned char>(c)) != 0,
                 ErrorCode::kInvalidArgument,
                 "einsum: subscripts must be letters and one \"...\"; got \"{}\" in \"{}\"", c,
                 equation);
    out += c;
    if (dots) i += 2;
  }
  return out;
}

Equation parse_equation(std::string_view text, size_t operands) {
  const size_t arrow = text.find("->");
  Equation equation;
  std::string_view left = text.substr(0, arrow);
  while (true) {
    const size_t comma = left.find(',');
    equation.inputs.push_back(letters_of(left.substr(0, comma), text));
    if (comma == std::string_view::npos) break;
    left.remove_prefix(comma + 1);
  }
  MUSTER_CHECK(equation.inputs.size() == operands, ErrorCode::kInvalidArgument,
               "einsum: the equation \"{}\" names {} operands; got {}", text,
               equation.inputs.size(), operands);
  if (arrow != std::string_view::npos) {
    equation.output = letters_of(text.substr(arrow + 2), text);
    return equation;
  }
  // Without an arrow: "...", then the letters that occur once, in order.
  std::string all;
  for (const std::string& input : equation.inputs) all += input;
  std::sort(all.begin(), all.end());
  if (all.find('.') != std::string::npos) equation.output = ".";
  for (const char c : all) {
    if (c != '.' && std::count(all.begin(), all.end(), c) == 1) equation.output += c;
  }
  return equation;
}

// Writes a dot as the labels of the dims that it stands for.
std::string expand_dots(const std::string& letters, int64_t hidden) {
  std::string out;
  for (const char c : letters) {
    if (c != '.') {
      out += c;
    } else {
      for (int64_t d = hidden; d > 0; --d) out += static_cast<char>(kFirstHidden + d - 1);
    }
  }
  return out;
}

// A letter that an operand names twice selects the diagonal.
void take_diagonals(Tensor& operand, std::string& labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    const size_t again = labels.find(labels[i], i + 1);
    if (again == std::string::npos) continue;
    const auto first = static_cast<int64_t>(i), second = static_cast<int64_t>(again);
    MUSTER_CHECK(operand.size(first) == operand.size(second), ErrorCode::kInvalidArgument,
                 "einsum: subscript {} is repeated for sizes {} and {}", labels[i],
                 operand.size(first), operand.size(second));
    operand = movedim(diagonal(operand, 0, first, second), -1, first);
    labels.erase(again, 1);
    --i;
  }
}

// The operand with one dim per label of `all`, in that order; absent ones have size 1.
Tensor aligned(const Tensor& operand, const std::string& labels, const std::string& all) {
  DimVector order;
  for (const char c : all) {
    const size_t at = labels.find(c);
    if (at != std::string::npos) order.push_back(static_cast<int64_t>(at));
  }
  Tensor out = permute(operand, order);
  for (size_t i = 0; i < all.size(); ++i) {
    if (labels.find(all[i]) == std::string::npos) out = unsqueeze(out, static_cast<int64_t>(i));
  }
  return out;
}

// Dims of two aligned operands by the part that they play in the product.
struct Parts {
  DimVector batch, left, right, summed;
};

DimVector joined(std::initializer_list<const DimVector*> lists) {
  DimVector out;
  for (const DimVector* list : lists) {
    for (const int64_t dim : *list) out.push_back(dim);
  }
  return out;
}

int64_t numel_over(const Tensor& tensor, Dims dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= tensor.size(dim);
  return count;
}

Tensor without(const Tensor& tensor, const DimVector& dims) {
  return dims.empty() ? tensor : sum(tensor, Dims(dims), /*keepdim=*/true);
}

// sum over `dims` of a * b, the summed dims kept as size 1.
Tensor product(Tensor a, Tensor b, Dims dims) {
  Parts parts;
  DimVector only_a, only_b;
  for (int64_t d = 0; d < a.ndim(); ++d) {
    const bool in_a = a.size(d) != 1, in_b = b.size(d) != 1;
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) {
      (in_a && in_b ? parts.summed : in_a ? only_a : only_b).push_back(d);
      if (!(in_a && in_b)) parts.left.push_back(d);
    } else {
      (in_a && in_b ? parts.batch : in_b ? parts.right : parts.left).push_back(d);
    }
  }
  a = without(a, only_a);
  b = without(b, only_b);
  if (parts.summed.empty()) return mul(a, b);
  const DimVector kept = joined({&parts.batch, &parts.left, &parts.right});
  DimVector sizes;
  for (const int64_t d : kept) sizes.push_back(a.size(d) == 1 ? b.size(d) : a.size(d));
  const int64_t batch = numel_over(a, parts.batch), inner = numel_over(a, parts.summed);
  const DimVector order_a = joined({&parts.batch, &parts.left, &parts.summed, &parts.right});
  const DimVector order_b = joined({&parts.batch, &parts.summed, &parts.right, &parts.left});
  const Tensor x = reshape(permute(a, order_a), {batch, numel_over(a, parts.left), inner});
  const Tensor y = reshape(permute(b, order_b), {batch, inner, numel_over(b, parts.right)});
  Tensor out = bmm(x, y);
  for (size_t i = 0; i < parts.summed.size(); ++i) sizes.push_back(1);
  out = view(out, sizes);
  const DimVector order = joined({&kept, &parts.summed});
  DimVector back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return permute(out, back);
}

int64_t hidden_dims(const Equation& equation, std::span<const Tensor> operands) {
  int64_t hidden = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string& letters = equation.inputs[i];
    const bool dots = letters.find('.') != std::string::npos;
    const auto named = static_cast<int64_t>(letters.size()) - (dots ? 1 : 0);
    MUSTER_CHECK(dots ? operands[i].ndim() >= named : operands[i].ndim() == named,
                 ErrorCode::kInvalidArgument,
                 "einsum: the number of subscripts must be that of dims; got {} subscripts for {}",
                 named, operands[i]);
    if (dots) hidden = std::max(hidden, operands[i].ndim() - named);
  }
  return hidden;
}

void check_sizes(const Tensor& operand, const std::string& labels, std::map<char, int64_t>& sizes) {
  for (size_t d = 0; d < labels.size(); ++d) {
    const int64_t size = operand.size(static_cast<int64_t>(d));
    int64_t& known = sizes.try_emplace(labels[d], size).first->second;
    MUSTER_CHECK(known == size || known == 1 || size == 1, ErrorCode::kInvalidArgument,
                 "einsum: subscript {} has size {} in operand {}, which does not broadcast with "
                 "size {} before it",
                 labels[d], size, operand, known);
    if (known == 1) known = size;
  }
}

// (equation, operands)
void einsum_composite(const OpArgs& args, std::span<Tensor> outs) {
  const auto operands = args[1].tensors();
  MUSTER_CHECK(!operands.empty(), ErrorCode::kInvalidArgument,
               "einsum: must provide at least one operand");
  const Equation equation = parse_equation(args[0].text(), operands.size());
  const int64_t hidden = hidden_dims(equation, operands);
  std::string all = expand_dots(equation.output, hidden);
  const size_t kept = all.size();
  std::vector<Tensor> tensors;
  std::vector<std::string> labels;
  std::map<char, int64_t> sizes;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool dots = equation.inputs[i].find('.') != std::string::npos;
    const auto named = static_cast<int64_t>(equation.inputs[i].size()) - (dots ? 1 : 0);
    labels.push_back(expand_dots(equation.inputs[i], operands[i].ndim() - named));
    tensors.push_back(operands[i]);
    take_diagonals(tensors[i], labels[i]);
    check_sizes(tensors[i], labels[i], sizes);
    for (const char c : labels[i]) {
      if (all.find(c) == std::string::npos) all += c;
    }
  }
  for (size_t i = 0; i < kept; ++i) {
    MUSTER_CHECK(sizes.contains(all[i]) && all.find(all[i]) == i, ErrorCode::kInvalidArgument,
                 "einsum: output subscript {} must appear in an operand, and once in the output",
                 all[i]);
  }
  Tensor result = aligned(tensors[0], labels[0], all);
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Labels that no later operand and not the result needs are summed now.
    DimVector summed;
    for (size_t d = kept; d < all.size(); ++d) {
      const bool later =
          std::any_of(labels.begin() + static_cast<std::ptrdiff_t>(i) + 1, labels.end(),
                      [&](const std::string& l) { return l.find(all[d]) != std::string::npos; });
      if (!later) summed.push_back(static_cast<int64_t>(d));
    }
    if (i > 0) {
      result = product(result, aligned(tensors[i], labels[i], all), summed);
    } else if (tensors.size() == 1) {
      result = without(result, summed);
    }
  }
  for (size_t d = all.size(); d > kept; --d) result = squeeze(result, static_cast<int64_t>(d) - 1);
  outs[0] = result;
}
}  // namespace

MUSTER_DEFINE_OP(einsum) {
  return composed("einsum(str equation, Tensor[] operands) -> Tensor", einsum_composite,
                  {"\"ij,jk->ik\", [f(2,3), f(3,4)]",
                   "\"bhqd,bhkd->bhqk\", [f(1,2,3,4), "
                   "f(1,2,5,4)]",
                   "\"ii\", [f(3,3)]"});
}
}  // namespace muster::ops

namespace muster {
Tensor einsum(std::string_view equation, std::span<const Tensor> operands) {
  static const Op& op = ops::find_op("einsum");
  return call_one(op, equation, operands);
}
}  // namespace muster
