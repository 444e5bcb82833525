#pragma once
/// Stage: a part of the model on this rank, and what is to happen around its work.

#include <functional>

#include "core/nn/module.h"

namespace muster::pipeline {

/// How sharding takes part, without the pipeline knowing it. All may be empty.
struct StageHooks {
  std::function<void()> unshard;  ///< UNSHARD: the stage's parameters are needed soon
  std::function<void()> reshard;  ///< RESHARD: they are not needed for now
  /// Before each backward of the stage; `is_last` for the last one of a step, whose gradients
  /// complete the sum over microbatches: only that one may reduce them over ranks.
  std::function<void(bool is_last)> before_backward;
  std::function<void()> reduce_grad;  ///< REDUCE_GRAD: all gradients of the step are there
};

struct Stage {
  int index = 0;             ///< along the model
  Module* module = nullptr;  ///< input of the stage -> output of the stage; not owned
  StageHooks hooks = {};
};

}  // namespace muster::pipeline
