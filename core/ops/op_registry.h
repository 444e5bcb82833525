#pragma once
/// How an operator's file states its definition and finds its callable form.

#include "core/dispatch/op_table.h"

namespace muster::ops {

/// The operator of that name; fills the operator table first. Call sites keep it in a static.
/// @error kNotFound with the nearest name
const Op& find_op(std::string_view name);

/// The filled table: for listings, calls by name and the conformance tests.
const OpTable& all_ops();

}  // namespace muster::ops

/// Opens the function that returns the OpDef of one operator; op_list.inc names it once.
#define MUSTER_DEFINE_OP(name) ::muster::OpDef define_##name()

/// Opens the function that adds the operators of one family to `table`; op_list.inc names it once.
#define MUSTER_DEFINE_OPS(family) void define_##family##_ops(::muster::OpTable& table)
