// Everything that differs between compilers and systems. What GCC and Clang have in common (vector extensions,
// builtins) is used where it is needed.
#pragma once

#if !defined(__GNUC__) && !defined(__clang__)
#error "The CPU kernel of torchscn needs GCC or Clang (vector extensions). Without it torchscn runs on plain torch."
#endif

#include "call.h"

// Loops over registers must be unrolled early, or the compiler keeps the registers in memory.
#if defined(__clang__)
#define SCN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SCN_UNROLL _Pragma("GCC unroll 16")
#endif

// Visible outside the library, which is compiled with everything hidden.
#define SCN_EXPORT __attribute__((visibility("default")))

// GCC knows this builtin from version 12 on.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SCN_HAS_SHUFFLE 1
#endif
#endif

namespace scn {

// The best instruction set that was compiled and that this processor runs.
static inline ScnIsa best_isa() {
#ifdef SCN_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
    return kGeneric;
}

// GOMP_parallel(region, data, n_threads, flags), the entry of GNU's OpenMP runtime, which LLVM's has too.
using Region = void (*)(void*);
using OpenMpParallel = void (*)(Region, void*, unsigned, unsigned);

static inline OpenMpParallel openmp_parallel_at(void* address) { return reinterpret_cast<OpenMpParallel>(address); }

}  // namespace scn
