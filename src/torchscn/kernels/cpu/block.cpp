// Gauss-Seidel on a block of signals at matrix-product speed.
//
// Compiled once per instruction set (SCN_ISA names it, SCN_BYTES is its register width, SCN_VECTORS the registers a
// row of the block takes). It uses vector extensions only, and no inline function of the standard library, so that no
// code for a newer processor can leak into what the linker shares between the builds.
//
// A block lays `lanes` signals side by side: row j of a block holds code j of every signal. Atoms are updated four at a
// time. Their four residual rows are accumulated over all atoms in registers, then resolved one after the other with
// the 4 x 4 corner of the Gram matrix: exact Gauss-Seidel with the arithmetic intensity of a matrix product.
#include "platform.h"
#include "problem.h"

namespace scn {
namespace {

template <class T> struct Bits;
template <> struct Bits<float> { using type = std::int32_t; static constexpr type magnitude = 0x7fffffff; };
template <> struct Bits<double> { using type = std::int64_t; static constexpr type magnitude = 0x7fffffffffffffffLL; };

template <class T>
struct Block {
    static constexpr int kWidth = SCN_BYTES / static_cast<int>(sizeof(T));
    static constexpr int kLanes = kWidth * SCN_VECTORS;
    using Mask = typename Bits<T>::type;
    typedef T Vec __attribute__((vector_size(SCN_BYTES)));
    typedef Mask VecMask __attribute__((vector_size(SCN_BYTES)));
    typedef T Unaligned __attribute__((vector_size(SCN_BYTES), aligned(sizeof(T)), may_alias));

    static inline Vec load(const T* p) { return *reinterpret_cast<const Vec*>(p); }
    static inline void store(T* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
    static inline Vec magnitude(Vec v) { return (Vec)((VecMask)v & Bits<T>::magnitude); }
    static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

    // Constraints, one struct each: what becomes of codes that moved freely, and how large the result is. Place i of
    // `mask` belongs to the first of the codes.
    struct NonNegative {
        static inline Vec project(Vec moved, const T*, std::int64_t) { return larger(moved, Vec{}); }
        static inline Vec size(Vec code) { return code; }
    };
    struct OnSupport {
        static inline Vec project(Vec moved, const T* mask, std::int64_t i) {
            return load(mask + i) > T(0) ? moved : Vec{};
        }
        static inline Vec size(Vec code) { return magnitude(code); }
    };

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
        for (int i = 0; i < kWidth; ++i) rows[i] = *reinterpret_cast<const Unaligned*>(from + i * from_stride);
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

    // The largest change and the largest code of every lane in one sweep.
    struct Progress { Vec change[SCN_VECTORS], code[SCN_VECTORS]; };

    // One sweep over all atoms. The first sweep from zero need not sum over the codes it has not come to yet.
    template <class Constraint>
    static void sweep(const Problem<T>& problem, std::int64_t padded, bool from_zero, const T* rhs, const T* mask,
                      T* codes, Progress& progress) {
        for (int v = 0; v < SCN_VECTORS; ++v) progress.change[v] = progress.code[v] = Vec{};
        const T* gram = problem.packed_gram;
        for (std::int64_t j = 0; j < padded; j += kGroup, gram += kGroup * padded) {
            Vec residual[kGroup][SCN_VECTORS];
            SCN_UNROLL for (int i = 0; i < kGroup; ++i)
                SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v)
                    residual[i][v] = load(rhs + (j + i) * kLanes + v * kWidth);
            const std::int64_t n_known = from_zero ? j : padded;
            const T* code = codes;
            const T* weight = gram;
            for (std::int64_t k = 0; k < n_known; ++k, code += kLanes, weight += kGroup) {
                SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v) {
                    const Vec known = load(code + v * kWidth);
                    SCN_UNROLL for (int i = 0; i < kGroup; ++i) residual[i][v] -= weight[i] * known;
                }
            }
            const T* corner = gram + j * kGroup;  // corner[k * kGroup + i] = G[j + i][j + k]
            SCN_UNROLL for (int i = 0; i < kGroup; ++i) {
                const T step = problem.relax * problem.inverse_diag[j + i];
                SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v) {
                    const std::int64_t place = (j + i) * kLanes + v * kWidth;
                    const Vec old = load(codes + place);
                    const Vec next = Constraint::project(old + step * residual[i][v], mask, place);
                    store(codes + place, next);
                    const Vec change = next - old;
                    progress.change[v] = larger(progress.change[v], magnitude(change));
                    progress.code[v] = larger(progress.code[v], Constraint::size(next));
                    SCN_UNROLL for (int below = i + 1; below < kGroup; ++below)
                        residual[below][v] -= corner[i * kGroup + below] * change;
                }
            }
        }
    }

    // The largest value of all lanes, 0 at least; NaN does not count.
    static T largest_lane(const Vec* rows) {
        Vec most{};
        SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v) most = larger(rows[v], most);
        T largest = 0;
        for (int l = 0; l < kWidth; ++l) largest = most[l] > largest ? most[l] : largest;
        return largest;
    }

    // Judges a block as a whole: puts the error that is left, and the block's largest code, in the place of every
    // lane's own. Changes that shrink by a factor r from sweep to sweep will add up to the last one times r / (1 - r);
    // the first sweep (change_before < 0) knows no factor and takes r = 1/2. Returns the change.
    static T judge_block(Progress& progress, T change_before) {
        const T change = largest_lane(progress.change), code = largest_lane(progress.code);
        T left = change;
        if (change_before >= T(0) && change > T(0))
            left *= change < change_before ? change / (change_before - change) : T(1e6);
        for (int v = 0; v < SCN_VECTORS; ++v) {
            progress.change[v] = Vec{} + left;
            progress.code[v] = Vec{} + code;
        }
        return change;
    }

    static bool any_unfinished(const Progress& progress, T tol) {
        VecMask unfinished{};
        // A lane with NaN compares false: it never holds its neighbours up.
        for (int v = 0; v < SCN_VECTORS; ++v) unfinished |= (VecMask)(progress.change[v] > tol * progress.code[v]);
        Mask any = 0;
        for (int l = 0; l < kWidth; ++l) any |= unfinished[l];
        return any != 0;
    }

    template <class Constraint>
    static std::int64_t iterate(const Problem<T>& problem, std::int64_t padded, const T* rhs, const T* mask, T* codes,
                                Progress& progress) {
        for (int v = 0; v < SCN_VECTORS; ++v) progress.change[v] = progress.code[v] = Vec{} + T(1);
        std::int64_t n_iter = 0;
        T change = -1;  // of the sweep before; none yet
        while (n_iter < problem.max_iter) {
            sweep<Constraint>(problem, padded, n_iter == 0 && !problem.init, rhs, mask, codes, progress);
            ++n_iter;
            if (!problem.stops_early) continue;
            if (problem.by_block) change = judge_block(progress, change);
            if (!any_unfinished(progress, problem.tol)) break;
        }
        return n_iter;
    }

    // iterate() under the constraint the problem names.
    static std::int64_t iterate_constrained(const Problem<T>& problem, std::int64_t padded, const T* rhs,
                                            const T* mask, T* codes, Progress& progress) {
        switch (problem.constraint) {
            case kNonNegative: return iterate<NonNegative>(problem, padded, rhs, mask, codes, progress);
            case kOnSupport: return iterate<OnSupport>(problem, padded, rhs, mask, codes, progress);
        }
        return 0;
    }

    static void fill_rows(T* block, std::int64_t first_row, std::int64_t last_row) {
        for (std::int64_t i = first_row * kLanes; i < last_row * kLanes; i += kWidth) store(block + i, Vec{});
    }

    // NaN in the lanes whose right-hand side is not finite, otherwise 0; such lanes are then solved for zero, so that
    // they have no part in how their block is judged.
    static void find_poison(const Problem<T>& problem, std::int64_t padded, T* rhs, Vec* poison) {
        for (int v = 0; v < SCN_VECTORS; ++v) poison[v] = Vec{} + problem.poison;
        for (std::int64_t j = 0; j < padded; ++j)
            for (int v = 0; v < SCN_VECTORS; ++v) poison[v] += T(0) * load(rhs + j * kLanes + v * kWidth);
        for (int lane = 0; lane < kLanes; ++lane)
            if (!(poison[lane / kWidth][lane % kWidth] == T(0)))
                for (std::int64_t j = 0; j < padded; ++j) rhs[j * kLanes + lane] = T(0);
    }

    static std::size_t scratch_size(const Problem<T>& problem) {
        return static_cast<std::size_t>(padded_atoms(problem.n_atoms)) * kLanes * (problem.mask ? 3 : 2);
    }

    static std::int64_t solve(const Problem<T>& problem, std::int64_t first, int count, T* scratch) {
        const std::int64_t n_atoms = problem.n_atoms, padded = padded_atoms(n_atoms), begin = first * n_atoms;
        T* rhs = scratch;
        T* codes = rhs + padded * kLanes;
        T* mask = problem.mask ? codes + padded * kLanes : nullptr;

        gather(problem.rhs + begin, n_atoms, count, rhs);
        fill_rows(rhs, n_atoms, padded);
        if (problem.shift)
            for (std::int64_t j = 0; j < n_atoms; ++j)
                for (int v = 0; v < SCN_VECTORS; ++v) {
                    T* place = rhs + j * kLanes + v * kWidth;
                    store(place, load(place) - problem.shift[j]);
                }
        if (problem.init) gather(problem.init + begin, n_atoms, count, codes);
        fill_rows(codes, problem.init ? n_atoms : 0, padded);
        if (mask) {
            gather(problem.mask + begin, n_atoms, count, mask);
            fill_rows(mask, n_atoms, padded);
        }
        Vec poison[SCN_VECTORS];
        find_poison(problem, padded, rhs, poison);

        Progress progress;
        const std::int64_t n_iter = iterate_constrained(problem, padded, rhs, mask, codes, progress);

        for (std::int64_t j = 0; j < n_atoms; ++j) {
            const T scale = problem.scale ? problem.scale[j] : T(1), offset = problem.scale ? problem.offset[j] : T(0);
            for (int v = 0; v < SCN_VECTORS; ++v) {
                T* place = codes + j * kLanes + v * kWidth;
                store(place, load(place) * scale + (offset + poison[v]));
            }
        }
        scatter(codes, n_atoms, count, problem.codes + begin);
        for (int lane = 0; lane < count; ++lane) {
            const int v = lane / kWidth, l = lane % kWidth;
            const T finite = T(0) * (progress.code[v][l] + poison[v][l]);
            problem.converged[first + lane] =
                finite == T(0) && progress.change[v][l] <= problem.tol * progress.code[v][l];
        }
        return n_iter;
    }
};

}  // namespace

#define SCN_JOIN_(a, b) a##_##b
#define SCN_JOIN(a, b) SCN_JOIN_(a, b)
extern const Kernel<float> SCN_JOIN(float32, SCN_ISA);
extern const Kernel<double> SCN_JOIN(float64, SCN_ISA);
const Kernel<float> SCN_JOIN(float32, SCN_ISA) = {
    Block<float>::kLanes, Block<float>::scratch_size, Block<float>::solve};
const Kernel<double> SCN_JOIN(float64, SCN_ISA) = {
    Block<double>::kLanes, Block<double>::scratch_size, Block<double>::solve};

}  // namespace scn
