// What one call asks for, shared by the dispatcher and every instruction set's build of the kernel.
#pragma once
#include <cstddef>
#include <cstdint>

#include "call.h"

namespace scn {

// Atoms whose residuals are accumulated together; the packed Gram matrix is laid out in groups of this many rows.
constexpr int kGroup = 4;

// Energies of atoms below this have lost digits to underflow.
template <class T>
constexpr T smallest_energy() {
    return sizeof(T) == sizeof(float) ? T(__FLT_MIN__) / T(__FLT_EPSILON__) : T(__DBL_MIN__) / T(__DBL_EPSILON__);
}

// Static, as every instruction set's build has to have its own.
static inline std::int64_t padded_atoms(std::int64_t n_atoms) { return (n_atoms + kGroup - 1) / kGroup * kGroup; }

// A batch of quadratic programs that share one Gram matrix G: for every signal (row), minimise
//     a G a' / 2 - (rhs - shift) a'
// over the codes that the constraint allows.
template <class T>
struct Problem {
    ScnConstraint constraint;
    const T* rhs;            // n_signals x n_atoms, rows contiguous
    const T* shift;          // n_atoms, or null for none
    const T* init;           // n_signals x n_atoms to start from, or null for zero
    const T* mask;           // n_signals x n_atoms that the constraint reads, or null
    const T *lower, *upper;  // bounds of the codes, n_atoms or n_signals x n_atoms, or null
    const T* threshold;      // weight of |a|, shaped like the bounds, or null
    std::int64_t bounds_stride;  // n_atoms where every signal has bounds of its own, otherwise 0
    const T* gram;           // n_atoms x n_atoms, as it was given
    const T* packed_gram;    // [padded / kGroup][padded][kGroup], zero beyond n_atoms
    const T* inverse_diag;   // padded; 0 where an atom has no energy, which keeps its code at 0
    T* codes;                // n_signals x n_atoms; may be rhs itself
    const T* scale;          // n_atoms: what is written is codes * scale + offset; null for the codes themselves
    const T* offset;         // n_atoms, given with scale
    unsigned char* converged;  // n_signals
    std::int64_t n_signals;
    std::int64_t n_atoms;
    std::int64_t max_iter;
    bool stops_early;        // when all is done; otherwise every block takes all max_iter sweeps
    // A signal is done when a sweep moves its codes by no more than this, relative to them.
    T largest_step;
    T largest_code_step;     // the same in the units of codes, where contributions are judged as well
    T shortest_step;         // what cannot be told from none
    bool by_block;           // also, neighbours are judged as a whole: the error left must be below block_tol
    T block_tol;
    bool is_uneven;          // atoms of very different norms: judge what codes contribute as well as the codes
    // Largest sum of squared contributions, relative to what they do for the objective; more is cancellation, in which a
    // singular G gets lost. 0 for no limit.
    T most_cancellation;
    bool finishes;           // by exact steps on the support where sweeps would take long
    T face_ridge;            // of exact steps
    T least_pivot;           // of exact steps: a smaller part of an atom is not told from none
    T relax;                 // over-relaxation, between 0 and 2
    T energy;                // packed_gram is G divided by this power of two
    bool has_vanishing;      // there are atoms with no energy, or so little that it cannot be told from none
    unsigned char* unbounded;  // set to 1 when one of them would have a positive code
    T poison;                // added to every code: NaN when the Gram matrix is not finite, otherwise 0
};

// What the Gram matrix says about every problem.
template <class T>
struct Condition {
    bool is_convex;   // beyond doubt not indefinite
    bool is_regular;  // not singular as far as rounding can tell
    T unevenness;     // ratio of the largest norm of an atom to the smallest, where it is above 4, otherwise 1
    T amplification;  // the error left after a sweep is at most this times the sweep's step
    T overlap;        // largest norm of a row of G scaled to unit diagonal: rounding errors of a sweep grow with it
};

// One problem of which nothing is shared with others: minimise a G a' / (2 energy) - (right - shift) a'.
template <class T>
struct OneProblem {
    ScnConstraint constraint;
    std::int64_t n_atoms;
    std::int64_t max_iter;
    const T* gram;
    T energy;
    const T* right;
    const T* shift;                      // or null
    const T* mask;                       // for kOnSupport
    const T *lower, *upper, *threshold;  // for kBounds
    T total;                             // for kSumTo
    const T* start;                      // allowed codes to start from, for kBounds, or null
};

// What became of it.
enum OwnStatus : int { kOwnSolved = 0, kOwnFailed = 1, kOwnNotConvex = 2, kOwnUnbounded = 3 };

// One instruction set's build of the kernel for one number type.
template <class T>
struct Kernel {
    int lanes;  // signals solved side by side in one block
    // Looks at an n x n Gram matrix; `scratch` holds condition_scratch(n) values.
    Condition<T> (*condition)(const T* gram, std::int64_t n, T relax, T* scratch);
    std::size_t (*condition_scratch)(std::int64_t n);
    // Values of scratch memory a block needs.
    std::size_t (*scratch_size)(const Problem<T>&);
    // Solves signals [first, first + count), count <= lanes, and returns the sweeps used. `scratch` is 64-byte aligned.
    std::int64_t (*solve_block)(const Problem<T>&, std::int64_t first, int count, T* scratch);
    // Solves one problem by itself in `n_steps` steps; `scratch` holds own_scratch(n) values.
    OwnStatus (*solve_own)(const OneProblem<T>& problem, T* codes, std::int64_t& n_steps, T* scratch);
    std::size_t (*own_scratch)(std::int64_t n);
};

}  // namespace scn
