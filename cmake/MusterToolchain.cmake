# Warnings for our own code, sanitizers, ccache and a fast linker where they exist.

add_library(muster_warnings INTERFACE)
target_compile_options(muster_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside the standard library and fmt when it inlines them at -O2.
  target_compile_options(muster_warnings INTERFACE -Wno-error=maybe-uninitialized -Wno-error=stringop-overflow
    -Wno-error=array-bounds -Wno-error=restrict -Wno-error=dangling-pointer -Wno-error=use-after-free -Wno-error=free-nonheap-object)
endif()

# -O3 is for kernels and reductions (CMakeLists.txt); elsewhere it costs build time and buys nothing.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# Call sites in messages are paths from the source tree's root.
add_compile_options(-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)

if(MUSTER_SANITIZE)
  add_compile_options(-fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MUSTER_SANITIZE})
endif()

find_program(MUSTER_CCACHE ccache)
if(MUSTER_CCACHE)
  # The sloppiness is what ccache asks for where precompiled headers are used (tests).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    ${MUSTER_CCACHE})
endif()

find_program(MUSTER_LLD ld.lld)
find_program(MUSTER_MOLD mold)
if(MUSTER_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(MUSTER_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# muster_binary(NAME SOURCE LAYER [third-party...]): an executable, if its main file exists.
function(muster_binary name source layer)
  if(EXISTS ${CMAKE_SOURCE_DIR}/${source})
    add_executable(${name} ${source})
    muster_target_name(${layer} layer_target)
    target_link_libraries(${name} PRIVATE ${layer_target} muster_warnings ${ARGN})
  endif()
endfunction()

# The revision that checkpoints record; "unknown" outside a git checkout. Read at configure time.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE MUSTER_CODE_REVISION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT MUSTER_CODE_REVISION)
  set(MUSTER_CODE_REVISION unknown)
endif()
