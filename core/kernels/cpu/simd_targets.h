// Limits the instruction sets that Highway compiles for; included before it, once per target, hence
// without #pragma once. SSSE3 differs too little from SSE4 to be worth its build time. The portable
// fallback stays: Highway demands a baseline.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3)
#endif
