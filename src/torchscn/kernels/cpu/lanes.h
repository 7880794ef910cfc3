// A block of signals side by side in vector lanes: row j of a block holds value j of every signal.
//
// Compiled once per instruction set: SCN_BYTES is its register width, SCN_VECTORS the registers a row of the block takes.
// Vector extensions only, and no inline function of the standard library, so that no code for a newer processor can leak
// into what the linker shares between the builds; for the same reason everything has internal linkage.
#pragma once
#include "platform.h"
#include "problem.h"

namespace scn {
namespace {

template <class T> struct Bits;
template <> struct Bits<float> {
    using type = std::int32_t;
    static constexpr type magnitude = 0x7fffffff, exponent = 0x7f800000;
};
template <> struct Bits<double> {
    using type = std::int64_t;
    static constexpr type magnitude = 0x7fffffffffffffffLL, exponent = 0x7ff0000000000000LL;
};

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

template <class T>
constexpr T epsilon() {
    return sizeof(T) == sizeof(float) ? T(__FLT_EPSILON__) : T(__DBL_EPSILON__);
}

template <class T>
struct Lanes {
    static constexpr int kWidth = SCN_BYTES / static_cast<int>(sizeof(T));
    static constexpr int kLanes = kWidth * SCN_VECTORS;
    using Mask = typename Bits<T>::type;
    typedef T Vec __attribute__((vector_size(SCN_BYTES)));
    typedef Mask VecMask __attribute__((vector_size(SCN_BYTES)));
    typedef T Unaligned __attribute__((vector_size(SCN_BYTES), aligned(sizeof(T)), may_alias));

    static inline Vec load(const T* p) { return *reinterpret_cast<const Vec*>(p); }
    static inline void store(T* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
    static inline Vec load_unaligned(const T* p) { return *reinterpret_cast<const Unaligned*>(p); }
    static inline Vec magnitude(Vec v) { return (Vec)((VecMask)v & Bits<T>::magnitude); }
    // The largest power of two up to every value; 0 for 0.
    static inline Vec power_of_two(Vec v) { return (Vec)((VecMask)v & Bits<T>::exponent); }
    static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }
    static inline Vec smaller(Vec a, Vec b) { return a < b ? a : b; }

    static inline bool any(VecMask mask) {
        Mask found = 0;
        for (int l = 0; l < kWidth; ++l) found |= mask[l];
        return found != 0;
    }
    static inline T sum(Vec v) {
        T total = 0;
        for (int l = 0; l < kWidth; ++l) total += v[l];
        return total;
    }

#ifdef SCN_HAS_SHUFFLE
    // Lane l of the two rows that exchange their off-diagonal sub-blocks of size kStep.
    static constexpr int upper(int l, int step) { return l & step ? kWidth + l - step : l; }
    static constexpr int lower(int l, int step) { return l & step ? kWidth + l : l + step; }

    template <int kStep, int... kLane>
    static inline void exchange(Vec& a, Vec& b) {
        const Vec old = a;
        a = __builtin_shufflevector(old, b, upper(kLane, kStep)...);
        b = __builtin_shufflevector(old, b, lower(kLane, kStep)...);
    }
    template <int kStep, int... kLane>
    static inline void exchange_rows(Vec (&rows)[kWidth]) {
        for (int i = 0; i < kWidth; ++i)
            if (!(i & kStep)) exchange<kStep, kLane...>(rows[i], rows[i + kStep]);
        if constexpr (kStep * 2 < kWidth) exchange_rows<kStep * 2, kLane...>(rows);
    }
    template <int kCount, int... kLane>
    static inline void transpose_rows(Vec (&rows)[kWidth]) {
        if constexpr (kCount == 0) exchange_rows<1, kLane...>(rows);
        else transpose_rows<kCount - 1, kCount - 1, kLane...>(rows);
    }
    // kWidth x kWidth values, from rows `from_stride` apart to rows `to_stride` apart.
    static inline void transpose(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
        Vec rows[kWidth];
        for (int i = 0; i < kWidth; ++i) rows[i] = load_unaligned(from + i * from_stride);
        transpose_rows<kWidth>(rows);
        for (int i = 0; i < kWidth; ++i) *reinterpret_cast<Unaligned*>(to + i * to_stride) = rows[i];
    }
#else
    static inline void transpose(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
        for (int i = 0; i < kWidth; ++i)
            for (int j = 0; j < kWidth; ++j) to[j * to_stride + i] = from[i * from_stride + j];
    }
#endif

    // Rows of signals to rows of atoms: to[j][lane] = from[lane][j]; missing signals read as zero.
    static void gather(const T* from, std::int64_t n_atoms, int count, T* to) {
        const std::int64_t whole_atoms = n_atoms / kWidth * kWidth;
        const int whole_lanes = count / kWidth * kWidth;
        for (int lane = 0; lane < whole_lanes; lane += kWidth)
            for (std::int64_t j = 0; j < whole_atoms; j += kWidth)
                transpose(from + lane * n_atoms + j, n_atoms, to + j * kLanes + lane, kLanes);
        for (int lane = 0; lane < kLanes; ++lane)
            for (std::int64_t j = lane < whole_lanes ? whole_atoms : 0; j < n_atoms; ++j)
                to[j * kLanes + lane] = lane < count ? from[lane * n_atoms + j] : T(0);
    }

    // The way back: to[lane][j] = from[j][lane] for the signals there are.
    static void scatter(const T* from, std::int64_t n_atoms, int count, T* to) {
        const std::int64_t whole_atoms = n_atoms / kWidth * kWidth;
        const int whole_lanes = count / kWidth * kWidth;
        for (int lane = 0; lane < whole_lanes; lane += kWidth)
            for (std::int64_t j = 0; j < whole_atoms; j += kWidth)
                transpose(from + j * kLanes + lane, kLanes, to + lane * n_atoms + j, n_atoms);
        for (int lane = 0; lane < count; ++lane)
            for (std::int64_t j = lane < whole_lanes ? whole_atoms : 0; j < n_atoms; ++j)
                to[lane * n_atoms + j] = from[j * kLanes + lane];
    }

    static void fill_rows(T* block, std::int64_t first_row, std::int64_t last_row) {
        for (std::int64_t i = first_row * kLanes; i < last_row * kLanes; i += kWidth) store(block + i, Vec{});
    }
};

}  // namespace
}  // namespace scn
