#include "core/ops/op_registry.h"

#include "core/autograd/autocast.h"
#include "core/autograd/recorder.h"

namespace muster::ops {

#define MUSTER_OP(name) OpDef define_##name();
#define MUSTER_OPS(family) void define_##family##_ops(OpTable& table);
#include "core/ops/op_list.inc"
#undef MUSTER_OP
#undef MUSTER_OPS

namespace {
bool fill_table() {
  OpTable& table = op_table();
#define MUSTER_OP(name) table.add(define_##name());
#define MUSTER_OPS(family) define_##family##_ops(table);
#include "core/ops/op_list.inc"
#undef MUSTER_OP
#undef MUSTER_OPS
  install_autograd();
  install_autocast();
  return true;
}
}  // namespace

const OpTable& all_ops() {
  static const bool filled = fill_table();
  static_cast<void>(filled);
  return op_table();
}

const Op& find_op(std::string_view name) { return all_ops().find(name); }
}  // namespace muster::ops
