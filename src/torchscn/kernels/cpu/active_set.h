// One problem with a Gram matrix of its own, solved exactly: the active-set method of Lawson and Hanson, with a Cholesky
// factor that grows and shrinks with the support.
//
// Atoms are brought to norms between 1 and 2 first, so that rounding means the same for all of them.
#pragma once
#include "lanes.h"

namespace scn {
namespace {

template <class T>
class ActiveSet {
    using L = Lanes<T>;
    using Vec = typename L::Vec;
    using Unaligned = typename L::Unaligned;
    static constexpr int kWidth = L::kWidth;

public:
    // Values of scratch memory: the scaled matrix, the factor, eight vectors, and the atoms of the support twice.
    static std::size_t scratch_size(std::int64_t n) { return static_cast<std::size_t>(2 * n * n + 10 * n + 64); }

    ActiveSet(std::int64_t n, T* scratch) : n_(n) {
        gram_ = scratch;
        factor_ = gram_ + n * n;
        inverse_ = factor_ + n * n;
        inverse_norm_ = inverse_ + n;
        right_ = inverse_norm_ + n;
        gradient_ = right_ + n;
        code_ = gradient_ + n;
        step_ = code_ + n;
        barred_ = step_ + n;
        dependent_ = barred_ + n;
        atoms_ = reinterpret_cast<std::int32_t*>(dependent_ + n);
        rest_ = atoms_ + n;
    }

    // Codes of one problem: `right` - `shift` is its right-hand side, `mask` its support, or null for codes of at least
    // zero.
    OwnStatus solve(const T* gram, const T* right, const T* shift, const T* mask, std::int64_t max_iter, T* codes,
                    std::int64_t& n_steps) {
        size_ = 0;
        is_indefinite_ = is_unbounded_ = false;
        const bool finite = scale(gram, right, shift);
        for (std::int64_t j = 0; j < n_; ++j) code_[j] = barred_[j] = T(0), gradient_[j] = right_[j];
        OwnStatus status = kOwnFailed;
        n_steps = mask ? 1 : 0;
        if (finite && is_indefinite_) return kOwnNotConvex;
        if (finite && is_unbounded_ && !mask) return kOwnUnbounded;
        if (finite) status = mask ? solve_on_support(mask) : descend(max_iter, n_steps);
        for (std::int64_t j = 0; j < n_; ++j) codes[j] = finite ? code_[j] * inverse_norm_[j] : T(__builtin_nan(""));
        return status;
    }

private:
    // Everything divided by the norms of the atoms; an atom without energy is barred by a zero. Returns whether all
    // numbers are finite.
    bool scale(const T* gram, const T* right, const T* shift) {
        T poison = 0;
        for (std::int64_t j = 0; j < n_; ++j) {
            const T energy = gram[j * n_ + j];
            // A power of two, which rounds nothing.
            inverse_norm_[j] = energy > T(0) ? T(1) / L::power_of_two(Vec{} + root(energy))[0] : T(0);
            is_indefinite_ |= energy < T(0);
        }
        const T largest = (T(1) + 32 * rounding()) * (T(1) + 32 * rounding());
        for (std::int64_t j = 0; j < n_; ++j) {
            const T* row = gram + j * n_;
            T* to = gram_ + j * n_;
            for (std::int64_t k = 0; k < n_; ++k) {
                poison += T(0) * row[k];
                to[k] = row[k] * inverse_norm_[j] * inverse_norm_[k];
            }
            const T value = shift ? right[j] - shift[j] : right[j];
            poison += T(0) * value;
            right_[j] = value * inverse_norm_[j];
            is_unbounded_ |= gram[j * n_ + j] <= smallest_energy<T>() && value > T(0);
        }
        // No two atoms have a product larger than that of their norms.
        for (std::int64_t j = 0; j < n_; ++j)
            for (std::int64_t k = 0; k < j; ++k) {
                const T product = gram_[j * n_ + k];
                is_indefinite_ |= product * product > largest * gram_[j * n_ + j] * gram_[k * n_ + k];
            }
        return poison == T(0);
    }

    T rounding() const { return epsilon<T>() * T(n_ + 8); }

    OwnStatus solve_on_support(const T* mask) {
        for (std::int64_t j = 0; j < n_; ++j)
            if (mask[j] > T(0) && inverse_norm_[j] > T(0)) append(static_cast<std::int32_t>(j));
        if (is_indefinite_) return kOwnNotConvex;
        // The second time for what rounding has left.
        for (int i = 0; i < 2; ++i) {
            find_step(true);
            for (std::int64_t p = 0; p < size_; ++p) code_[atoms_[p]] += step_[p];
            find_gradient();
        }
        return kOwnSolved;
    }

    OwnStatus descend(std::int64_t max_iter, std::int64_t& n_steps) {
        bool arrived = true;
        for (bool polished = false; n_steps < max_iter;) {
            const std::int64_t entering = steepest();
            if (entering < 0) {
                if (polished || size_ == 0) return kOwnSolved;
                // Once more at the end, for what rounding has left.
                polished = arrived = move();
                ++n_steps;
                continue;
            }
            polished = false;
            append(static_cast<std::int32_t>(entering));
            if (is_indefinite_) return kOwnNotConvex;
            arrived = false;
            for (; !arrived && size_ > 0 && n_steps < max_iter; ++n_steps) arrived = move();
            // Atoms that were of no use may be, now that another one has joined.
            if (code_[entering] > T(0))
                for (std::int64_t j = 0; j < n_; ++j) barred_[j] = T(0);
        }
        return arrived && steepest() < 0 ? kOwnSolved : kOwnFailed;
    }

    // The atom off the support that lowers the objective fastest; -1 where none does beyond rounding.
    std::int64_t steepest() const {
        T total = 0, most = 0;
        for (std::int64_t j = 0; j < n_; ++j) total += code_[j];
        std::int64_t found = -1;
        for (std::int64_t j = 0; j < n_; ++j) {
            const T summed_up = (right_[j] > T(0) ? right_[j] : -right_[j]) + total;
            if (gradient_[j] > most && gradient_[j] > 8 * epsilon<T>() * summed_up && code_[j] == T(0) &&
                barred_[j] == T(0) && inverse_norm_[j] > T(0))
                most = gradient_[j], found = j;
        }
        return found;
    }

    // Goes to the optimum on the support, or to where the first code on the way becomes zero, and takes that atom off.
    // Returns whether it has arrived.
    bool move() {
        find_step(false);
        T length = free_length();
        // Where no atom stands in the way along a dependence, there is nothing to gain on it beyond rounding.
        if (length == T(1) && has_dependent()) find_step(true), length = free_length();
        bool arrived = true;
        std::int64_t first_leaving = size_;
        for (std::int64_t p = size_ - 1; p >= 0; --p) {
            T& code = code_[atoms_[p]];
            const T next = code + length * step_[p];
            const bool leaves = !(next > T(0)) || (length < T(1) && part_to_zero(p) <= length);
            // An atom that cannot move must wait until another one has joined.
            if (leaves && code == T(0)) barred_[atoms_[p]] = T(1);
            code = leaves ? T(0) : next;
            if (leaves) arrived = false, first_leaving = p, atoms_[p] = -1;
        }
        if (!arrived) factorize_from(first_leaving);
        find_gradient();
        return arrived;
    }

    // How much of the step brings the code at place p to zero; 1 where none does.
    T part_to_zero(std::int64_t p) const {
        const T code = code_[atoms_[p]];
        if (code + step_[p] > T(0)) return T(1);
        return code > T(0) ? -code / step_[p] : step_[p] < T(0) ? T(0) : T(1);
    }

    // How much of the step can be taken before the first code is zero.
    T free_length() const {
        T length = 1;
        for (std::int64_t p = 0; p < size_; ++p) {
            const T part = part_to_zero(p);
            length = part < length ? part : length;
        }
        return length;
    }

    bool has_dependent() const {
        for (std::int64_t p = 0; p < size_; ++p)
            if (dependent_[p] > T(0)) return true;
        return false;
    }

    // Takes the atoms marked -1 off the support, the first of which stands at `first`.
    void factorize_from(std::int64_t first) {
        std::int64_t n_rest = 0;
        for (std::int64_t p = first; p < size_; ++p)
            if (atoms_[p] >= 0) rest_[n_rest++] = atoms_[p];
        size_ = first;
        for (std::int64_t i = 0; i < n_rest; ++i) append(rest_[i]);
    }

    // Adds an atom to the support. One that depends on those there gets the smallest pivot that rounding can tell from
    // none, so that the next step goes far along the dependence, to where another atom leaves.
    void append(std::int32_t atom) {
        const T* row = gram_ + atom * n_;
        for (std::int64_t p = 0; p < size_; ++p) step_[p] = row[atoms_[p]];
        solve_lower(false);
        const T pivot = row[atom] - dot(step_, step_, size_), least = 4 * rounding() * row[atom];
        for (std::int64_t p = 0; p < size_; ++p) factor_[p * n_ + size_] = step_[p];
        if (pivot < -8 * least) {
            // Rounding of the matrix shows as often as the atoms there are needed to make up this one.
            solve_upper(false);
            T weight = 1;
            for (std::int64_t p = 0; p < size_; ++p) weight += step_[p] > T(0) ? step_[p] : -step_[p];
            is_indefinite_ |= pivot < -8 * least * weight * weight;
        }
        dependent_[size_] = pivot > least ? T(0) : T(1);
        inverse_[size_] = T(1) / root(pivot > least ? pivot : least);
        atoms_[size_++] = atom;
    }

    // step = A^-1 gradient on the support; with `keep_dependent`, codes of atoms that depend on those before them stay.
    void find_step(bool keep_dependent) {
        for (std::int64_t p = 0; p < size_; ++p) step_[p] = gradient_[atoms_[p]];
        solve_lower(keep_dependent);
        solve_upper(keep_dependent);
    }

    T inverse(std::int64_t p, bool keep_dependent) const {
        return keep_dependent && dependent_[p] > T(0) ? T(0) : inverse_[p];
    }

    // step = L'^-1 step
    void solve_upper(bool keep_dependent) {
        for (std::int64_t p = size_ - 1; p >= 0; --p) {
            const T* column = factor_ + p * n_;
            step_[p] -= dot(column + p + 1, step_ + p + 1, size_ - p - 1);
            step_[p] *= inverse(p, keep_dependent);
        }
    }

    // step = L^-1 step; the factor lies column by column.
    void solve_lower(bool keep_dependent) {
        for (std::int64_t p = 0; p < size_; ++p) {
            step_[p] *= inverse(p, keep_dependent);
            subtract(step_[p], factor_ + p * n_ + p + 1, size_ - p - 1, step_ + p + 1);
        }
    }

    // gradient = right - codes G
    void find_gradient() {
        for (std::int64_t j = 0; j < n_; ++j) gradient_[j] = right_[j];
        for (std::int64_t p = 0; p < size_; ++p) subtract(code_[atoms_[p]], gram_ + atoms_[p] * n_, n_, gradient_);
    }

    static void subtract(T factor, const T* from, std::int64_t count, T* to) {
        std::int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth)
            *reinterpret_cast<Unaligned*>(to + i) -= factor * L::load_unaligned(from + i);
        for (; i < count; ++i) to[i] -= factor * from[i];
    }

    static T dot(const T* a, const T* b, std::int64_t count) {
        Vec sums{};
        std::int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth) sums += L::load_unaligned(a + i) * L::load_unaligned(b + i);
        T total = L::sum(sums);
        for (; i < count; ++i) total += a[i] * b[i];
        return total;
    }

    const std::int64_t n_;
    std::int64_t size_ = 0;
    bool is_indefinite_ = false, is_unbounded_ = false;
    T *gram_, *factor_, *inverse_, *inverse_norm_, *right_, *gradient_, *code_, *step_, *barred_, *dependent_;
    std::int32_t *atoms_, *rest_;
};

}  // namespace
}  // namespace scn
