// How far a code can still be from its optimum when a sweep moves it by a given step.
//
// One over-relaxed sweep over the atoms that moves the codes by `step` leaves an error of at most
//     G^-1 ((1 - 1 / relax) diag(G) + U) step,
// U the part of G above its diagonal: codes after a sweep are the exact ones of a problem whose right-hand side is off by
// the bracket times `step`. The norm of that matrix, the amplification, is what turns steps into promises. It is estimated
// by power iteration on a Cholesky factor of G with unit diagonal, and taken half as large again: power iteration comes
// from below, and clipped codes can add a little.
#pragma once
#include "lanes.h"

namespace scn {
namespace {

template <class T>
class Conditioning {
    using L = Lanes<T>;
    using Vec = typename L::Vec;
    static constexpr int kIterations = 6;
    static constexpr std::int64_t kPanel = 4;  // rows eliminated at a time

public:
    static std::size_t scratch_size(std::int64_t n) { return static_cast<std::size_t>(n * n + 5 * n); }

    Conditioning(const T* gram, std::int64_t n, T relax, T* scratch)
        : gram_(gram), n_(n), relax_(relax), factor_(scratch), scale_(scratch + n * n), vector_(scale_ + n), work_(vector_ + n), weight_(work_ + n), solved_(weight_ + n) {}

    Condition<T> examine() {
        T least = 0, most = 0;
        bool has_negative = false;
        for (std::int64_t j = 0; j < n_; ++j) {
            const T energy = gram_[j * n_ + j];
            has_negative |= energy < T(0) || contradicts(j);
            scale_[j] = energy > T(0) ? T(1) / root(energy) : T(0);
            if (scale_[j] > most) most = scale_[j];
            if (scale_[j] > T(0) && (least == T(0) || scale_[j] < least)) least = scale_[j];
        }
        Condition<T> found;
        found.unevenness = most > 4 * least ? most / least : T(1);
        found.is_regular = factorize(T(0));
        found.overlap = overlap();  // of what factorize left below the diagonal
        if (found.is_regular) {
            for (std::int64_t j = 0; j < n_; ++j) weight_[j] = T(1);
            found.amplification = norm();
            if (found.unevenness > T(1)) {
                for (std::int64_t j = 0; j < n_; ++j) weight_[j] = scale_[j];
                const T in_codes = norm();
                if (!(in_codes <= found.amplification)) found.amplification = in_codes;
            }
            found.amplification *= T(1.5);
            found.is_convex = true;
        } else {
            // Singular or worse; a ridge of the size of rounding tells which.
            found.amplification = T(1) / (epsilon<T>() * T(n_));
            found.is_convex = factorize(32 * T(n_ + 8) * epsilon<T>());
        }
        found.is_convex &= !has_negative;
        return found;
    }

private:
    // Whether an atom without energy has a product with another one, beyond what underflow explains.
    bool contradicts(std::int64_t j) const {
        const T smallest = 4 * smallest_energy<T>();
        if (gram_[j * n_ + j] > smallest) return false;
        for (std::int64_t k = 0; k < n_; ++k) {
            const T product = gram_[j * n_ + k];
            if (k != j && product * product > smallest * gram_[k * n_ + k]) return true;
        }
        return false;
    }

    // row[k...] -= factor * other[k...]
    static void subtract(T* row, T factor, const T* other, std::int64_t count) {
        for (std::int64_t k = 0; k < count; ++k) row[k] -= factor * other[k];
    }

    static T dot(const T* a, const T* b, std::int64_t count) {
        Vec parts{};
        std::int64_t k = 0;
        for (; k + L::kWidth <= count; k += L::kWidth) parts += L::load_unaligned(a + k) * L::load_unaligned(b + k);
        T total = L::sum(parts);
        for (; k < count; ++k) total += a[k] * b[k];
        return total;
    }

    // The factor U' U of G scaled to unit diagonal, plus a ridge, on and above the diagonal; below it stays scaled G
    // itself. False where a pivot is not above rounding.
    bool factorize(T ridge) {
        for (std::int64_t i = 0; i < n_; ++i) {
            T* row = factor_ + i * n_;
            for (std::int64_t k = 0; k < n_; ++k) row[k] = scale_[i] * gram_[i * n_ + k] * scale_[k];
            row[i] = T(1) + ridge;
        }
        const T smallest = ridge > T(0) ? T(0) : 4 * epsilon<T>() * T(n_);
        for (std::int64_t first = 0; first < n_; first += kPanel) {
            const std::int64_t last = first + kPanel < n_ ? first + kPanel : n_;
            for (std::int64_t k = first; k < last; ++k) {
                T* pivot_row = factor_ + k * n_;
                if (!(pivot_row[k] > smallest)) return false;
                const T pivot = root(pivot_row[k]), inverse = T(1) / pivot;
                pivot_row[k] = pivot;
                for (std::int64_t i = k + 1; i < n_; ++i) pivot_row[i] *= inverse;
                for (std::int64_t i = k + 1; i < last; ++i)
                    subtract(factor_ + i * n_ + i, pivot_row[i], pivot_row + i, n_ - i);
            }
            if (last - first == kPanel)
                for (std::int64_t i = last; i < n_; ++i) subtract_panel(first, i);
        }
        return true;
    }

    // Row i minus what the kPanel rows from `first` on take from it, all at once: memory is traversed less often.
    void subtract_panel(std::int64_t first, std::int64_t i) {
        const T *a = factor_ + first * n_ + i, *b = a + n_, *c = b + n_, *d = c + n_;
        const T factor_a = *a, factor_b = *b, factor_c = *c, factor_d = *d;
        T* row = factor_ + i * n_ + i;
        for (std::int64_t k = 0; k < n_ - i; ++k)
            row[k] -= factor_a * a[k] + factor_b * b[k] + (factor_c * c[k] + factor_d * d[k]);
    }

    // From the scaled matrix below the diagonal.
    T overlap() {
        for (std::int64_t i = 0; i < n_; ++i) work_[i] = T(1);
        for (std::int64_t i = 0; i < n_; ++i) {
            const T* row = factor_ + i * n_;
            for (std::int64_t k = 0; k < i; ++k) work_[k] += row[k] * row[k];
            work_[i] += dot(row, row, i);
        }
        T largest = 1;
        for (std::int64_t i = 0; i < n_; ++i) largest = work_[i] > largest ? work_[i] : largest;
        return root(largest);
    }

    // Solves with the scaled matrix, in place.
    void solve(T* v) const {
        for (std::int64_t k = 0; k < n_; ++k) {
            v[k] /= factor_[k * n_ + k];
            subtract(v + k + 1, v[k], factor_ + k * n_ + k + 1, n_ - k - 1);
        }
        for (std::int64_t k = n_ - 1; k >= 0; --k)
            v[k] = (v[k] - dot(factor_ + k * n_ + k + 1, v + k + 1, n_ - k - 1)) / factor_[k * n_ + k];
    }

    // work = G^-1 ((1 - 1 / relax) I + U) vector
    void apply() {
        const T own = T(1) - T(1) / relax_;
        for (std::int64_t i = 0; i < n_; ++i) {
            const T value = vector_[i] / unit(i);
            work_[i] = own * value;
            subtract(work_, -value, factor_ + i * n_, i);  // column i of U is row i below the diagonal
        }
        solve(work_);
        for (std::int64_t i = 0; i < n_; ++i) work_[i] *= unit(i);
    }

    // vector = (the transpose) work
    void apply_transpose() {
        const T own = T(1) - T(1) / relax_;
        for (std::int64_t i = 0; i < n_; ++i) solved_[i] = work_[i] * unit(i);
        solve(solved_);
        for (std::int64_t i = 0; i < n_; ++i)
            vector_[i] = (own * solved_[i] + dot(factor_ + i * n_, solved_, i)) / unit(i);
    }

    // What a step of 1 in the scaled problem is in the units asked for.
    T unit(std::int64_t i) const { return weight_[i] > T(0) ? weight_[i] : T(1); }

    // Largest singular value of G^-1 (...), from below.
    T norm() {
        // A start without structure: the high bits of a linear congruential generator.
        std::uint32_t state = 12345;
        for (std::int64_t i = 0; i < n_; ++i) {
            state = state * 1664525u + 1013904223u;
            vector_[i] = T(static_cast<std::int32_t>(state >> 8) - (1 << 23)) / T(1 << 23);
        }
        T largest = 0;
        for (int iteration = 0; iteration < kIterations; ++iteration) {
            const T length = root(dot(vector_, vector_, n_));
            if (!(length > T(0))) break;
            for (std::int64_t i = 0; i < n_; ++i) vector_[i] /= length;
            apply();
            const T found = root(dot(work_, work_, n_));
            if (found > largest) largest = found;
            apply_transpose();
        }
        return largest;
    }

    const T* gram_;
    const std::int64_t n_;
    const T relax_;
    T *factor_, *scale_, *vector_, *work_, *weight_, *solved_;
};

}  // namespace
}  // namespace scn
