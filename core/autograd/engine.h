#pragma once
/// The reverse scheduler: runs the nodes below some roots, latest recorded first.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/autograd/node.h"

namespace muster {

struct EngineOptions {
  bool keep_graph = false;
  bool create_graph = false;
};

/// Runs the graph from `roots` (with their gradients). With `captures`, only nodes on paths to
/// these edges run and the gradients that arrive there are returned in order (undefined where none
/// did); without, gradients end in the leaves' accumulators. Runs on the calling thread, outside of
/// autocast, and may be entered again from a hook.
std::vector<Tensor> run_engine(std::span<const Edge> roots, GradList root_grads,
                               std::span<const Edge> captures, EngineOptions options);

/// A number of the pass under way on this thread, drawn once in the process; 0 when there is none.
uint64_t current_backward_pass() noexcept;

/// Adds a callback to the pass under way on this thread; false when there is none.
bool add_engine_callback(std::function<void()> callback);

}  // namespace muster
