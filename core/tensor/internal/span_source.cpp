#include "core/tensor/internal/span_source.h"

#include <algorithm>

#include "core/tensor/internal/size_classes.h"

namespace muster::internal {
namespace {
constexpr std::array<int64_t, 4> kSpanNbytes = {int64_t{64} << 10, int64_t{512} << 10,
                                                kHugePageNbytes, 4 * kHugePageNbytes};

int64_t slab_nbytes(int64_t span_nbytes) { return std::max(span_nbytes, kHugePageNbytes); }
}  // namespace

SpanSource::Kind& SpanSource::kind_of(int64_t span_nbytes) noexcept {
  size_t i = 0;
  while (kSpanNbytes[i] != span_nbytes) ++i;
  return kinds_[i];
}

SpanSource::~SpanSource() {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    for (const Slab& slab : kinds_[i].slabs) pages_.unmap(slab.data, slab_nbytes(kSpanNbytes[i]));
  }
}

std::byte* SpanSource::take(int64_t span_nbytes) {
  Kind& kind = kind_of(span_nbytes);
  const std::lock_guard lock(kind.mutex);
  auto slab = std::find_if(kind.slabs.begin(), kind.slabs.end(),
                           [](const Slab& s) { return !s.unused.empty(); });
  if (slab == kind.slabs.end()) {
    const int64_t nbytes = slab_nbytes(span_nbytes);
    std::byte* const data = pages_.map(nbytes, nbytes);
    if (data == nullptr) return nullptr;
    slab = kind.slabs.insert(kind.slabs.end(), Slab{data, 0, {}});
    for (int64_t at = nbytes - span_nbytes; at >= 0; at -= span_nbytes) {
      slab->unused.push_back(data + at);
    }
  }
  std::byte* const span = slab->unused.back();
  slab->unused.pop_back();
  ++slab->num_used;
  return span;
}

void SpanSource::give(std::byte* span, int64_t span_nbytes) noexcept {
  mark_gone(span, span_nbytes);
  Kind& kind = kind_of(span_nbytes);
  const std::lock_guard lock(kind.mutex);
  for (Slab& slab : kind.slabs) {
    if (span < slab.data || span >= slab.data + slab_nbytes(span_nbytes)) continue;
    slab.unused.push_back(span);
    --slab.num_used;
    return;
  }
}

void SpanSource::trim() noexcept {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const std::lock_guard lock(kinds_[i].mutex);
    std::erase_if(kinds_[i].slabs, [&](const Slab& slab) {
      if (slab.num_used > 0) return false;
      pages_.unmap(slab.data, slab_nbytes(kSpanNbytes[i]));
      return true;
    });
  }
}
}  // namespace muster::internal
