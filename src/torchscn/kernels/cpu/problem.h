// What one call asks for, shared by the dispatcher and every instruction set's build of the kernel.
#pragma once
#include <cstddef>
#include <cstdint>

#include "call.h"

namespace scn {

// Atoms whose residuals are accumulated together; the packed Gram matrix is laid out in groups of this many rows.
constexpr int kGroup = 4;

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
    const T* packed_gram;    // [padded / kGroup][padded][kGroup], zero beyond n_atoms
    const T* inverse_diag;   // padded; 0 where an atom has no energy, which keeps its code at 0
    T* codes;                // n_signals x n_atoms; may be rhs itself
    const T* scale;          // n_atoms: what is written is codes * scale + offset; null for the codes themselves
    const T* offset;         // n_atoms, given with scale
    unsigned char* converged;  // n_signals
    std::int64_t n_signals;
    std::int64_t n_atoms;
    std::int64_t max_iter;
    T tol;                   // a signal is done when no code changes by more than tol times its largest code
    bool stops_early;        // when all is done; otherwise every block takes all max_iter sweeps
    bool by_block;           // judge a block as a whole: done when the error left is below tol times its largest code
    T relax;                 // over-relaxation, between 0 and 2
    T poison;                // added to every code: NaN when the Gram matrix is not finite, otherwise 0
};

// One instruction set's build of the kernel for one number type.
template <class T>
struct Kernel {
    int lanes;  // signals solved side by side in one block
    // Values of scratch memory a block needs.
    std::size_t (*scratch_size)(const Problem<T>&);
    // Solves signals [first, first + count), count <= lanes, and returns the sweeps used. `scratch` is 64-byte aligned.
    std::int64_t (*solve_block)(const Problem<T>&, std::int64_t first, int count, T* scratch);
};

}  // namespace scn
