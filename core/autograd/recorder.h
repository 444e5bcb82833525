#pragma once
/// The autograd key: records a call as a Node when an input requires a gradient, then runs it
/// below.

namespace muster {

/// Installs the recorder as the handler of DispatchKey::kAutograd. core/ops calls it once.
void install_autograd();

}  // namespace muster
