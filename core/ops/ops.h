#pragma once
/// All operators: include this to compute with tensors.

#include "core/ops/activation.h"
#include "core/ops/attention/sdpa.h"
#include "core/ops/creation.h"
#include "core/ops/indexing.h"
#include "core/ops/linalg.h"
#include "core/ops/losses.h"
#include "core/ops/nn.h"
#include "core/ops/optimizer.h"
#include "core/ops/pointwise.h"
#include "core/ops/random.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"
