// A transpose changes strides, not values: where views share memory, and where a copy begins.
//
// A tensor is sizes, strides and an offset over a storage. Element (i, j) lies at
// offset + i * stride(0) + j * stride(1), counted in elements.
#include "examples/show.h"

using namespace muster;
using examples::show;

int main() {
  const Tensor x = reshape(arange(6), {2, 3});  // i64
  const Tensor y = t(x);
  MUSTER_ASSERT(y.storage() == x.storage(), "a transpose must share its storage");
  MUSTER_ASSERT(!y.is_contiguous(), "a transpose must not be row-major");
  fmt::print("x: {} strides: {}\n", show(x), show(x.strides()));
  fmt::print("y: {} strides: {}\n", show(y), show(y.strides()));
  fmt::print("storage bytes: {}\n", x.storage()->nbytes());

  // y in row-major order is 0 3 1 4 2 5. No stride walks the storage 0 1 2 3 4 5 that way.
  const Result<Tensor> flat_view = catch_error([&] { return view(y, {-1}); });
  MUSTER_ASSERT(!flat_view.ok(), "this transpose cannot be flattened by a view");
  fmt::print("view(-1): incompatible strides\n");

  // reshape copies where a view is impossible.
  const Tensor flat = reshape(y, {-1});
  MUSTER_ASSERT(flat.storage() != y.storage(), "the flattened transpose must be a copy");

  fill_(select(select(y, 0, 0), 0, 1), 30);  // y[0, 1] = 30
  MUSTER_ASSERT(select(select(x, 0, 1), 0, 0).item_int() == 30, "x[1, 0] is y[0, 1]");
  MUSTER_ASSERT(select(flat, 0, 1).item_int() == 3, "the copy keeps its value");
  fmt::print("alias changed x; copied reshape stayed unchanged\n");
}
