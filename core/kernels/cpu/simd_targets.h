// Included before Highway, once per target, so without an include guard of its own need: it only
// limits the instruction sets that are compiled. SSSE3 differs too little from SSE4 to be worth its
// build time. The portable fallback stays, as Highway demands.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3)
#endif
