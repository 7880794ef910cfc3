// The library's C interface: what one call asks for and what it gets back. kernels/cpu.py mirrors it field by field, so
// every change here is made there too and takes the next interface version.
#pragma once
#include <cstdint>

constexpr std::int64_t kInterfaceVersion = 4;

enum ScnNumber : std::int32_t { kFloat32 = 0, kFloat64 = 1 };

// Instruction sets, slowest first.
enum ScnIsa : std::int32_t { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

enum ScnConstraint : std::int32_t { kNonNegative = 0, kOnSupport = 1, kBounds = 2, kSumTo = 3 };

// What scn_solve returns.
enum ScnStatus : int { kOk = 0, kOutOfMemory = 1, kBadCall = 2, kFailed = 3, kNotConvex = 4, kUnbounded = 5 };

// Tensors are contiguous, row by row, and of the number type; pointers marked "or null" may be left out.
struct ScnCall {
    std::int64_t interface_version;  // kInterfaceVersion; stays the first field in all versions
    std::int32_t number;             // ScnNumber
    std::int32_t isa;                // ScnIsa, at most scn_best_isa()
    std::int32_t constraint;         // ScnConstraint
    std::int32_t own_bounds;         // whether lower, upper and threshold have a row for every signal
    std::int32_t by_block;           // judge a block of neighbouring signals as a whole
    std::int32_t finishes;           // take exact steps on the support where sweeps would take long
    std::int64_t n_threads;          // at most this many threads, the caller's included
    std::int64_t n_signals;
    std::int64_t n_atoms;
    std::int64_t n_grams;            // 1 for all signals, or n_signals for one each, which are solved exactly
    std::int64_t max_iter;
    double tol;                      // 0 runs all max_iter sweeps; otherwise the accuracy aimed at, relative to the codes
    double promise;                  // the largest error, relative to the codes, of what is called converged
    double rounding;                 // the shortest step, relative to the codes, that can be told from none for
                                     // orthogonal atoms
    double ridge;                    // added to the diagonal of the Gram matrix, relative to it
    const void* rhs;                 // n_signals x n_atoms
    const void* gram;                // n_grams x n_atoms x n_atoms
    const void* shift;               // n_atoms, or null
    const void* init;                // n_signals x n_atoms, or null
    const void* mask;                // n_signals x n_atoms for kOnSupport, otherwise null
    const void* lower;               // for kBounds n_atoms or n_signals x n_atoms, may be infinite, otherwise null
    const void* upper;               // the same
    const void* threshold;           // the same, finite: weight of |a|
    const void* total;               // n_signals for kSumTo, otherwise null
    const void* scale;               // n_atoms, or null
    const void* offset;              // n_atoms, given with scale
    void* codes;                     // receives n_signals x n_atoms; may be rhs itself
    unsigned char* converged;        // receives n_signals times 0 or 1
    std::int64_t most_sweeps;        // receives the most sweeps of any signal
    std::int64_t total_sweeps;       // receives the sum of sweeps over all signals
};

extern "C" {
std::int64_t scn_interface_version();

// The best ScnIsa this build has and this processor runs.
int scn_best_isa();

// Hands over the GOMP_parallel of the OpenMP runtime that torch uses, so that both share one pool of threads; null for
// threads of our own.
void scn_use_openmp(void* gomp_parallel);

// Solves the problems of a call; returns a ScnStatus.
int scn_solve(ScnCall* call);
}
