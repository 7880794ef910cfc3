// The exact step: for every signal, the optimum over the codes that can move, found by a Cholesky factorisation of its
// own part of the Gram matrix. Sweeps crawl where atoms are nearly dependent; this step does not, and the few atoms a
// code uses make it cheap.
//
// Works on one register of lanes at a time, each lane with its own support. Supports are compressed to the front, so the
// work depends on the largest support of the lanes, not on the number of atoms.
#pragma once
#include "lanes.h"

namespace scn {
namespace {

template <class T>
class Face {
    using L = Lanes<T>;
    using Vec = typename L::Vec;
    using VecMask = typename L::VecMask;
    static constexpr int kWidth = L::kWidth;
    static constexpr int kLanes = L::kLanes;
    static constexpr int kTile = SCN_BYTES == 64 ? 4 : 2;  // so that a tile of the factor stays in registers

public:
    static constexpr std::int64_t kLargest = 1024;  // atoms on a support; more would take too much memory

    static std::int64_t padded_size(std::int64_t size) { return (size + kTile - 1) / kTile * kTile; }

    // Values of scratch memory for a dictionary: the factor by rows of whole tiles, five vectors, and the atoms.
    static std::size_t scratch_size(std::int64_t n_atoms) {
        const std::int64_t padded = padded_size(n_atoms < kLargest ? n_atoms : kLargest), tiles = padded / kTile;
        return static_cast<std::size_t>((tiles * (tiles + 1) / 2 * kTile * kTile + 6 * (padded + 1)) * kWidth);
    }

    // Lanes of one register: their codes, and what limits them (kNonNegative where `mask` is null). `live` says which
    // lanes take the step. `residual` is rhs - codes G.
    Face(const Problem<T>& problem, const T* residual, const T* mask, T* codes, VecMask live, T* scratch)
        : problem_(problem), residual_(residual), mask_(mask), codes_(codes), live_(live), scratch_(scratch) {}

    // Returns the lanes that have more to gain on a smaller support.
    VecMask step() {
        const std::int64_t size = find_supports();
        if (size == 0) return VecMask{};
        lay_out(size);
        collect();
        factorize();
        solve();
        const Vec length = mask_ ? Vec{} + T(1) : limit();
        for (std::int64_t p = 0; p < size; ++p)
            for (int l = 0; l < kWidth; ++l)
                if (p < count_[l]) {
                    T& code = codes_[atoms_[p * kWidth + l] * kLanes + l];
                    const T moved = code + length[l] * at(step_, p)[l];
                    // A code that stopped at zero is there up to rounding only.
                    code = mask_ || moved > 8 * epsilon<T>() * code ? moved : T(0);
                }
        return clipped_ & live_;
    }

private:
    static Vec& at(T* rows, std::int64_t p) { return reinterpret_cast<Vec*>(rows)[p]; }

    bool is_free(std::int64_t j, int l) const {
        const T* place = (mask_ ? mask_ : codes_) + j * kLanes + l;
        return *place > T(0) && problem_.inverse_diag[j] > T(0);
    }

    // Counts the atoms on every live lane's support; returns the largest count.
    std::int64_t find_supports() {
        std::int64_t largest = 0;
        for (int l = 0; l < kWidth; ++l) count_[l] = 0;
        for (std::int64_t j = 0; j < problem_.n_atoms; ++j)
            for (int l = 0; l < kWidth; ++l) count_[l] += live_[l] && is_free(j, l);
        for (int l = 0; l < kWidth; ++l) {
            if (count_[l] > kLargest) live_[l] = 0, count_[l] = 0;
            largest = count_[l] > largest ? count_[l] : largest;
        }
        return largest;
    }

    void lay_out(std::int64_t size) {
        size_ = padded_size(size);
        const std::int64_t tiles = size_ / kTile, row = (size_ + 1) * kWidth;
        factor_ = scratch_;
        inverse_ = factor_ + tiles * (tiles + 1) / 2 * kTile * kTile * kWidth;
        right_ = inverse_ + row;
        step_ = right_ + row;
        start_ = step_ + row;
        work_ = start_ + row;
        atoms_ = reinterpret_cast<std::int32_t*>(work_ + row);
        for (int l = 0; l < kWidth; ++l) count_[l] = 0;
        for (std::int64_t i = 0; i < row; ++i) atoms_[i] = 0;
        for (std::int64_t j = 0; j < problem_.n_atoms; ++j)
            for (int l = 0; l < kWidth; ++l) {
                atoms_[count_[l] * kWidth + l] = static_cast<std::int32_t>(j);
                count_[l] += live_[l] && is_free(j, l);
            }
    }

    // Row p of the factor, from column 0 to the end of the tile on the diagonal.
    T* row(std::int64_t p) const {
        const std::int64_t tile = p / kTile;
        return factor_ + (tile * (tile + 1) / 2 * kTile * kTile + p % kTile * (tile + 1) * kTile) * kWidth;
    }

    // Every lane's own rows and columns of G, residuals and codes; beyond its support the identity.
    void collect() {
        const std::int64_t padded = padded_atoms(problem_.n_atoms);
        const T* gram = problem_.packed_gram;
        const T ridge = T(1) + problem_.face_ridge;
        for (std::int64_t p = 0; p < size_; ++p) {
            const std::int32_t* own = atoms_ + p * kWidth;
            std::int64_t place[kWidth];
            Vec inside{}, residual{}, code{};
            for (int l = 0; l < kWidth; ++l) {
                const std::int64_t atom = own[l];
                place[l] = atom / kGroup * kGroup * padded + atom % kGroup;
                inside[l] = p < count_[l] ? T(1) : T(0);
                residual[l] = residual_[atom * kLanes + l];
                code[l] = codes_[atom * kLanes + l];
            }
            at(right_, p) = residual * inside;
            at(start_, p) = code * inside;
            T* to = row(p);
            for (std::int64_t q = 0; q <= p; ++q) {
                const std::int32_t* other = atoms_ + q * kWidth;
                T values[kWidth];
                for (int l = 0; l < kWidth; ++l) values[l] = gram[place[l] + other[l] * kGroup];
                at(to, q) = L::load_unaligned(values) * inside;
            }
            at(to, p) = at(to, p) * ridge + (T(1) - inside);
        }
    }

    // L L' = A, tile by tile; the diagonal of L is kept as its inverse.
    void factorize() {
        for (std::int64_t p = 0; p < size_; p += kTile)
            for (std::int64_t q = 0; q <= p; q += kTile) {
                Vec tile[kTile][kTile];
                accumulate(p, q, tile);
                if (q < p) divide(p, q, tile);
                else factorize_corner(p, tile);
            }
    }

    // tile = A[p...][q...] - sum over k < q of L[p...][k] L[q...][k]'. On the diagonal, the part of the tile above it is
    // read as well, but never used.
    void accumulate(std::int64_t p, std::int64_t q, Vec (&tile)[kTile][kTile]) {
        const T *above[kTile], *left[kTile];
        for (int i = 0; i < kTile; ++i) left[i] = row(p + i), above[i] = row(q + i);
        SCN_UNROLL for (int i = 0; i < kTile; ++i)
            SCN_UNROLL for (int j = 0; j < kTile; ++j) tile[i][j] = L::load(left[i] + (q + j) * kWidth);
        for (std::int64_t k = 0; k < q * kWidth; k += kWidth) {
            Vec other[kTile];
            SCN_UNROLL for (int j = 0; j < kTile; ++j) other[j] = L::load(above[j] + k);
            SCN_UNROLL for (int i = 0; i < kTile; ++i) {
                const Vec own = L::load(left[i] + k);
                SCN_UNROLL for (int j = 0; j < kTile; ++j) tile[i][j] -= own * other[j];
            }
        }
    }

    void divide(std::int64_t p, std::int64_t q, Vec (&tile)[kTile][kTile]) {
        for (int j = 0; j < kTile; ++j)
            for (int i = 0; i < kTile; ++i) {
                for (int k = 0; k < j; ++k) tile[i][j] -= tile[i][k] * at(row(q + j), q + k);
                at(row(p + i), q + j) = tile[i][j] *= at(inverse_, q + j);
            }
    }

    void factorize_corner(std::int64_t p, Vec (&tile)[kTile][kTile]) {
        for (int j = 0; j < kTile; ++j) {
            const Vec diagonal = at(row(p + j), p + j);
            Vec pivot = tile[j][j], inverse{};
            for (int k = 0; k < j; ++k) pivot -= tile[j][k] * tile[j][k];
            // A pivot lost in rounding belongs to an atom that depends on those before it: its code stays.
            const VecMask kept = (VecMask)(pivot > problem_.least_pivot * diagonal);
            for (int l = 0; l < kWidth; ++l) inverse[l] = kept[l] ? T(1) / root(pivot[l]) : T(0);
            at(inverse_, p + j) = inverse;
            tile[j][j] = pivot * inverse;
            at(row(p + j), p + j) = tile[j][j];
            for (int i = j + 1; i < kTile; ++i) {
                for (int k = 0; k < j; ++k) tile[i][j] -= tile[i][k] * tile[j][k];
                at(row(p + i), p + j) = tile[i][j] *= inverse;
            }
        }
    }

    // step = A^-1 right
    void solve() {
        for (std::int64_t p = 0; p < size_; ++p) {
            const T* own = row(p);
            Vec value = at(right_, p), other{};
            std::int64_t k = 0;
            for (; k + 2 <= p; k += 2) {
                value -= L::load(own + k * kWidth) * at(step_, k);
                other -= L::load(own + (k + 1) * kWidth) * at(step_, k + 1);
            }
            if (k < p) value -= L::load(own + k * kWidth) * at(step_, k);
            at(step_, p) = (value + other) * at(inverse_, p);
        }
        for (std::int64_t p = size_ - 1; p >= 0; --p) {
            const Vec value = at(step_, p) *= at(inverse_, p);
            const T* own = row(p);
            for (std::int64_t k = 0; k < p; ++k) at(step_, k) -= L::load(own + k * kWidth) * value;
        }
    }

    // Change of the objective for a move of the codes on the support.
    Vec objective_change(T* move) {
        Vec linear{}, quadratic{};
        for (std::int64_t p = 0; p < size_; ++p) at(work_, p) = Vec{};
        for (std::int64_t p = 0; p < size_; ++p) {
            const Vec value = at(move, p);
            const T* own = row(p);
            linear += at(right_, p) * value;
            for (std::int64_t k = 0; k <= p; ++k) at(work_, k) += L::load(own + k * kWidth) * value;
        }
        for (std::int64_t p = 0; p < size_; ++p) quadratic += at(work_, p) * at(work_, p);
        return quadratic / 2 - linear;
    }

    // Which part of the step to take before codes below zero are set to zero: all of it where none is, otherwise the
    // one of a few that lowers the objective most, and at least up to where the first code reaches zero, which always
    // lowers it.
    Vec limit() {
        Vec to_zero = Vec{} + T(1), slope{};
        for (std::int64_t p = 0; p < size_; ++p) {
            const Vec move = at(step_, p), code = at(start_, p);
            slope += at(right_, p) * move;
            to_zero = L::smaller(to_zero, code + move < T(0) ? -code / move : Vec{} + T(1));
        }
        clipped_ = (VecMask)(to_zero < T(1));
        if (!L::any(clipped_)) return Vec{} + T(1);
        Vec best = to_zero, lowest = (to_zero * to_zero / 2 - to_zero) * slope;
        T* move = inverse_;  // not needed any more
        T part = 1;
        for (int attempt = 0; attempt < 3; ++attempt, part /= 2) {
            for (std::int64_t p = 0; p < size_; ++p)
                at(move, p) = L::larger(at(start_, p) + part * at(step_, p), Vec{}) - at(start_, p);
            const Vec change = objective_change(move);
            const VecMask better = (VecMask)((change < lowest) & (to_zero < part));
            best = better ? Vec{} + part : best;
            lowest = better ? change : lowest;
        }
        return best;
    }

    const Problem<T>& problem_;
    const T* residual_;
    const T* mask_;
    T* codes_;
    VecMask live_;
    VecMask clipped_{};
    T* scratch_;
    std::int64_t size_ = 0;
    std::int64_t count_[kWidth];
    T *factor_ = nullptr, *inverse_ = nullptr, *right_ = nullptr, *step_ = nullptr, *start_ = nullptr, *work_ = nullptr;
    std::int32_t* atoms_ = nullptr;
};

}  // namespace
}  // namespace scn
