// Gauss-Seidel on a block of signals at matrix-product speed, finished by exact steps where it would crawl.
//
// Compiled once per instruction set, which SCN_ISA names (see lanes.h).
//
// Atoms are updated four at a time. Their four residual rows are accumulated over all atoms in registers, then resolved
// one after the other with the 4 x 4 corner of the Gram matrix: exact Gauss-Seidel with the arithmetic intensity of a
// matrix product.
#include "active_set.h"
#include "conditioning.h"
#include "face.h"
#include "lanes.h"

namespace scn {
namespace {

template <class T>
struct Block : Lanes<T> {
    using L = Lanes<T>;
    using typename L::Vec;
    using typename L::VecMask;
    using L::fill_rows, L::gather, L::kLanes, L::kWidth, L::larger, L::load, L::magnitude, L::scatter, L::store;

    static constexpr T kCutOff = T(1LL << 50);
    static constexpr int kHastyRounds = 4, kHastySteps = 2, kMostRounds = 200;

    struct Rows {
        T *rhs, *codes, *mask, *lower, *upper, *threshold, *residual, *face;
    };

    // Constraints, one struct each: what becomes of codes that a gradient step of a length moved freely. Place i of the
    // rows belongs to the first of the codes.
    struct NonNegative {
        static inline Vec settle(Vec moved, const Rows&, std::int64_t, T) { return larger(moved, Vec{}); }
    };
    struct OnSupport {
        static inline Vec settle(Vec moved, const Rows& rows, std::int64_t i, T) {
            return load(rows.mask + i) > T(0) ? moved : Vec{};
        }
    };
    struct Bounds {
        static inline Vec settle(Vec moved, const Rows& rows, std::int64_t i, T length) {
            const Vec weight = length * load(rows.threshold + i);
            const Vec shrunk = larger(moved - weight, Vec{}) + L::smaller(moved + weight, Vec{});
            return project(shrunk, rows, i);
        }
        static inline Vec project(Vec codes, const Rows& rows, std::int64_t i) {
            return L::smaller(larger(codes, load(rows.lower + i)), load(rows.upper + i));
        }
    };

    // Squared lengths of every lane: of the last step, and of the codes. In the units of the codes, and, for uneven
    // atoms, in those of what the codes contribute, which no atom's norm can distort.
    struct Progress {
        Vec step[SCN_VECTORS], code[SCN_VECTORS], step_part[SCN_VECTORS], code_part[SCN_VECTORS];
    };

    // Residuals of four atoms, over the first n_known atoms.
    static inline void accumulate(const T* rhs, const T* codes, const T* gram, std::int64_t j, std::int64_t n_known,
                                  Vec (&residual)[kGroup][SCN_VECTORS]) {
        SCN_UNROLL for (int i = 0; i < kGroup; ++i)
            SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v) residual[i][v] = load(rhs + (j + i) * kLanes + v * kWidth);
        const T* code = codes;
        const T* weight = gram;
        for (std::int64_t k = 0; k < n_known; ++k, code += kLanes, weight += kGroup) {
            SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v) {
                const Vec known = load(code + v * kWidth);
                SCN_UNROLL for (int i = 0; i < kGroup; ++i) residual[i][v] -= weight[i] * known;
            }
        }
    }

    // One sweep over all atoms. The first sweep from zero need not sum over the codes it has not come to yet.
    template <class Constraint, bool kUneven>
    static void sweep(const Problem<T>& problem, std::int64_t padded, bool from_zero, const Rows& rows,
                      Progress& progress) {
        for (int v = 0; v < SCN_VECTORS; ++v)
            progress.step[v] = progress.code[v] = progress.step_part[v] = progress.code_part[v] = Vec{};
        const T* gram = problem.packed_gram;
        T* codes = rows.codes;
        for (std::int64_t j = 0; j < padded; j += kGroup, gram += kGroup * padded) {
            Vec residual[kGroup][SCN_VECTORS];
            accumulate(rows.rhs, codes, gram, j, from_zero ? j : padded, residual);
            const T* corner = gram + j * kGroup;  // corner[k * kGroup + i] = G[j + i][j + k]
            SCN_UNROLL for (int i = 0; i < kGroup; ++i) {
                const T step = problem.relax * problem.inverse_diag[j + i];
                const T energy = corner[i * kGroup + i];
                SCN_UNROLL for (int v = 0; v < SCN_VECTORS; ++v) {
                    const std::int64_t place = (j + i) * kLanes + v * kWidth;
                    const Vec old = load(codes + place);
                    const Vec next = Constraint::settle(old + step * residual[i][v], rows, place, step);
                    store(codes + place, next);
                    const Vec change = next - old;
                    progress.step[v] += change * change;
                    progress.code[v] += next * next;
                    if constexpr (kUneven) {
                        progress.step_part[v] += energy * change * change;
                        progress.code_part[v] += energy * next * next;
                    }
                    SCN_UNROLL for (int below = i + 1; below < kGroup; ++below)
                        residual[below][v] -= corner[i * kGroup + below] * change;
                }
            }
        }
    }

    static void sweep(const Problem<T>& problem, std::int64_t padded, bool from_zero, const Rows& rows,
                      Progress& progress) {
        const bool uneven = problem.is_uneven;
        switch (problem.constraint) {
            case kNonNegative:
                return uneven ? sweep<NonNegative, true>(problem, padded, from_zero, rows, progress)
                              : sweep<NonNegative, false>(problem, padded, from_zero, rows, progress);
            case kOnSupport:
                return uneven ? sweep<OnSupport, true>(problem, padded, from_zero, rows, progress)
                              : sweep<OnSupport, false>(problem, padded, from_zero, rows, progress);
            case kBounds:
                return uneven ? sweep<Bounds, true>(problem, padded, from_zero, rows, progress)
                              : sweep<Bounds, false>(problem, padded, from_zero, rows, progress);
            case kSumTo:
                return;  // its codes cannot be updated one at a time: they never come here
        }
    }

    // Lanes whose last step was too long. A lane with NaN compares false: it never holds its neighbours up.
    static VecMask unfinished(const Problem<T>& problem, const Progress& progress, int v) {
        const T limit = problem.largest_step * problem.largest_step;
        const T code_limit = problem.largest_code_step * problem.largest_code_step;
        VecMask found = (VecMask)(progress.step[v] > code_limit * progress.code[v]);
        if (problem.is_uneven) found |= (VecMask)(progress.step_part[v] > limit * progress.code_part[v]);
        return found;
    }

    // How much longer the longest step of any lane is than it may be; 1 or less when all are done.
    static T excess(const Problem<T>& problem, const Progress& progress) {
        T worst = 0;
        for (int v = 0; v < SCN_VECTORS; ++v) {
            const T limit = problem.largest_step * problem.largest_step;
            const T code_limit = problem.largest_code_step * problem.largest_code_step;
            Vec ratio = progress.step[v] / (code_limit * progress.code[v]);
            if (problem.is_uneven) ratio = larger(ratio, progress.step_part[v] / (limit * progress.code_part[v]));
            for (int l = 0; l < kWidth; ++l) worst = ratio[l] > worst ? ratio[l] : worst;
        }
        return root(worst);
    }

    // The error left in a block as a whole, relative to its codes. Steps that shrink by a factor r from sweep to sweep
    // will add up to the last one times r / (1 - r); the first sweep (step_before < 0) knows no factor and takes 1/2.
    // A step that cannot be told from none leaves nothing.
    static T block_error(const Problem<T>& problem, const Progress& progress, T& step_before) {
        Vec steps{}, codes{};
        for (int v = 0; v < SCN_VECTORS; ++v) {
            // NaN does not count.
            steps += progress.step[v] >= T(0) ? progress.step[v] : Vec{};
            codes += progress.code[v] >= T(0) ? progress.code[v] : Vec{};
        }
        const T step = root(L::sum(steps)), size = root(L::sum(codes));
        T left = step > problem.shortest_step * size ? step : T(0);
        if (step_before >= T(0) && step > T(0)) left *= step < step_before ? step / (step_before - step) : T(1e6);
        step_before = step;
        return left > T(0) ? left / size : T(0);
    }

    // Whether sweeps that shrink their steps like the last one did would cost more than exact steps do.
    static bool is_slow(const Problem<T>& problem, T excess_before, T excess_now) {
        // A lane whose codes all became zero has an infinite one; the next sweep will show whether they stay there.
        if (excess_now <= T(1) || excess_now > T(1e30)) return false;
        const T affordable = T(16) + T(problem.n_atoms) / 16;
        T left = excess_now;
        // left <= (excess_before / excess_now)^affordable, without a logarithm
        const T shrinks = excess_before / excess_now;
        for (T sweeps = 0; sweeps < affordable && left > T(1); sweeps += 1) left /= shrinks;
        return !(left <= T(1));
    }

    // Sweeps until all is done, or, where the problem may be finished by exact steps, until that is faster.
    static std::int64_t descend(const Problem<T>& problem, std::int64_t padded, bool from_zero, const Rows& rows,
                                Progress& progress) {
        std::int64_t n_iter = 0;
        T step = -1, excess_before = 0;
        while (n_iter < problem.max_iter) {
            sweep(problem, padded, n_iter == 0 && from_zero, rows, progress);
            ++n_iter;
            if (!problem.stops_early) continue;
            const bool block_done = !problem.by_block || block_error(problem, progress, step) <= problem.block_tol;
            const T excess_now = excess(problem, progress);
            if (block_done && excess_now <= T(1)) break;
            if (problem.finishes && n_iter >= 3 && is_slow(problem, excess_before, excess_now)) break;
            excess_before = excess_now;
        }
        return n_iter;
    }

    // residual = rhs - codes G
    static void find_residuals(const Problem<T>& problem, std::int64_t padded, const Rows& rows) {
        const T* gram = problem.packed_gram;
        for (std::int64_t j = 0; j < padded; j += kGroup, gram += kGroup * padded) {
            Vec residual[kGroup][SCN_VECTORS];
            accumulate(rows.rhs, rows.codes, gram, j, padded, residual);
            for (int i = 0; i < kGroup; ++i)
                for (int v = 0; v < SCN_VECTORS; ++v)
                    store(rows.residual + (j + i) * kLanes + v * kWidth, residual[i][v]);
        }
    }

    // An exact step of the live lanes; leaves live those that have more to gain on a smaller support.
    static void take_exact_step(const Problem<T>& problem, std::int64_t padded, const Rows& rows,
                                VecMask (&live)[SCN_VECTORS]) {
        find_residuals(problem, padded, rows);
        for (int v = 0; v < SCN_VECTORS; ++v)
            if (L::any(live[v]))
                live[v] = Face<T>(problem, rows.residual + v * kWidth, rows.mask ? rows.mask + v * kWidth : nullptr,
                                  rows.codes + v * kWidth, live[v], rows.face)
                              .step();
    }

    static bool any_live(const VecMask (&live)[SCN_VECTORS]) {
        VecMask found{};
        for (int v = 0; v < SCN_VECTORS; ++v) found |= live[v];
        return L::any(found);
    }

    // Exact steps on the supports, with sweeps in between that let atoms enter and leave them, for the lanes that are
    // not done. Everything lowers the objective, up to rounding. Steps that end at the optimum of a support make sure that this support
    // never comes back; the first rounds get by without, which is faster.
    static std::int64_t finish(const Problem<T>& problem, std::int64_t padded, std::int64_t n_iter, const Rows& rows,
                               Progress& progress) {
        // On a given support one step does it; what is left then is rounding, or a system without a solution.
        const int most_rounds = rows.mask ? 3 : kMostRounds;
        for (int round = 0; round < most_rounds && n_iter < problem.max_iter; ++round, ++n_iter) {
            VecMask live[SCN_VECTORS];
            for (int v = 0; v < SCN_VECTORS; ++v) live[v] = unfinished(problem, progress, v);
            if (!any_live(live)) break;
            const std::int64_t most_steps = round < kHastyRounds ? kHastySteps : problem.n_atoms;
            for (std::int64_t i = 0; i < most_steps && any_live(live); ++i)
                take_exact_step(problem, padded, rows, live);
            for (int i = 0; i < (rows.mask ? 1 : 2); ++i) sweep(problem, padded, false, rows, progress);
        }
        return n_iter;
    }

    // The active-set method, from their codes on, for the lanes that are not done; marks those it has solved.
    static std::int64_t finish_one_by_one(const Problem<T>& problem, const Rows& rows, const Progress& progress,
                                          VecMask (&solved)[SCN_VECTORS]) {
        const std::int64_t n = problem.n_atoms;
        T *right = rows.face, *lower = right + n, *upper = lower + n, *threshold = upper + n, *codes = threshold + n;
        T* scratch = codes + n;
        std::int64_t most_steps = 0;
        for (int lane = 0; lane < kLanes; ++lane) {
            if (!unfinished(problem, progress, lane / kWidth)[lane % kWidth]) continue;
            for (std::int64_t j = 0; j < n; ++j) {
                const std::int64_t place = j * kLanes + lane;
                right[j] = rows.rhs[place], codes[j] = rows.codes[place], threshold[j] = rows.threshold[place];
                lower[j] = rows.lower[place], upper[j] = rows.upper[place];
            }
            const OneProblem<T> one{kBounds, n,     problem.max_iter, problem.gram, problem.energy, right, nullptr,
                                    nullptr, lower, upper,            threshold,    T(0),           codes};
            std::int64_t n_steps = 0;
            // Reads the start before it writes the codes.
            const bool is_solved = solve_one<T>(one, codes, n_steps, scratch) == kOwnSolved;
            most_steps = n_steps > most_steps ? n_steps : most_steps;
            if (!is_solved) continue;
            solved[lane / kWidth][lane % kWidth] = -1;
            for (std::int64_t j = 0; j < n; ++j) rows.codes[j * kLanes + lane] = codes[j];
        }
        return most_steps;
    }

    // NaN in the lanes whose right-hand side is not finite, otherwise 0; such lanes are then solved for zero, so that
    // they have no part in how their block is judged. Returns whether a lane is so bright or dim that squares of its
    // codes could overflow or vanish, with the largest number of every lane that can make a code in `most`.
    static bool find_poison(const Problem<T>& problem, std::int64_t padded, const Rows& rows, Vec* poison, Vec* most) {
        T* rhs = rows.rhs;
        for (int v = 0; v < SCN_VECTORS; ++v) poison[v] = Vec{} + problem.poison, most[v] = Vec{};
        for (std::int64_t j = 0; j < padded; ++j)
            for (int v = 0; v < SCN_VECTORS; ++v) {
                const Vec value = load(rhs + j * kLanes + v * kWidth);
                poison[v] += T(0) * value;
                most[v] = larger(pull(problem, rows, j * kLanes + v * kWidth, value), most[v]);
            }
        bool extreme = false;
        for (int lane = 0; lane < kLanes; ++lane) {
            const int v = lane / kWidth, l = lane % kWidth;
            if (!(poison[v][l] == T(0))) {
                most[v][l] = T(0);
                for (std::int64_t j = 0; j < padded; ++j) rhs[j * kLanes + lane] = T(0);
            }
            extreme |= most[v][l] > T(1 << 20) || (most[v][l] > T(0) && most[v][l] * T(1 << 20) < T(1));
        }
        return extreme;
    }

    // What can make codes at place i, as sizes: the right-hand side, and bounds that keep them from zero.
    static Vec pull(const Problem<T>& problem, const Rows& rows, std::int64_t i, Vec value) {
        if (rows.mask) return load(rows.mask + i) > T(0) ? magnitude(value) : Vec{};
        if (!rows.lower) return value;
        const Vec lower = load(rows.lower + i), upper = load(rows.upper + i), start = Bounds::project(Vec{}, rows, i);
        const Vec up = upper > start ? value : Vec{}, down = lower < start ? -value : Vec{};
        return larger(larger(up, down), problem.energy * magnitude(start));
    }

    // Whether an atom without energy would take a code that grows without bound.
    static bool is_unbounded(const Problem<T>& problem, const Rows& rows) {
        VecMask found{};
        for (std::int64_t j = 0; j < problem.n_atoms; ++j)
            if (problem.inverse_diag[j] == T(0))
                for (int v = 0; v < SCN_VECTORS; ++v) {
                    const std::int64_t i = j * kLanes + v * kWidth;
                    Vec value = load(rows.rhs + i);
                    if (rows.lower) {
                        const Vec weight = load(rows.threshold + i);
                        const Vec up = load(rows.upper + i) > T(0) ? value : Vec{};
                        const Vec down = load(rows.lower + i) < T(0) ? -value : Vec{};
                        value = larger(up, down) - weight;
                    }
                    found |= (VecMask)(value > T(0));
                }
        return L::any(found);
    }

    static void multiply_rows(T* rows, std::int64_t n_rows, const Vec* factor) {
        for (std::int64_t j = 0; j < n_rows; ++j)
            for (int v = 0; v < SCN_VECTORS; ++v) {
                T* place = rows + j * kLanes + v * kWidth;
                store(place, load(place) * factor[v]);
            }
    }

    // Brings the codes of every lane near 1; `unit` receives what they are to be times afterwards.
    static void scale_lanes(const Problem<T>& problem, std::int64_t padded, const Rows& rows, const Vec* most,
                            Vec* unit) {
        Vec inverse_size[SCN_VECTORS], inverse_unit[SCN_VECTORS];
        for (int v = 0; v < SCN_VECTORS; ++v) {
            // The smallest normal number stands in for those below it, which have no exponent.
            const Vec normal = larger(most[v], Vec{} + (sizeof(T) == sizeof(float) ? T(__FLT_MIN__) : T(__DBL_MIN__)));
            const Vec size = most[v] > T(0) ? L::power_of_two(normal) : Vec{} + T(1);
            inverse_size[v] = T(1) / size;
            unit[v] = size / problem.energy;
            inverse_unit[v] = problem.energy * inverse_size[v];
        }
        multiply_rows(rows.rhs, padded, inverse_size);
        // Numbers that keep codes at a bound do so just as well when they are cut off before they overflow.
        for (std::int64_t i = 0; i < padded * kLanes; i += kWidth)
            store(rows.rhs + i, L::smaller(larger(load(rows.rhs + i), Vec{} - kCutOff), Vec{} + kCutOff));
        if (rows.lower) {
            multiply_rows(rows.lower, padded, inverse_unit);
            multiply_rows(rows.upper, padded, inverse_unit);
            multiply_rows(rows.threshold, padded, inverse_size);
        }
        if (problem.init || rows.lower) multiply_rows(rows.codes, padded, inverse_unit);
    }

    // A start so far off that its square could overflow, or that is not a number any more, is replaced by zero.
    static void drop_wild_starts(std::int64_t padded, const Rows& rows) {
        T* codes = rows.codes;
        for (int lane = 0; lane < kLanes; ++lane) {
            bool wild = false;
            for (std::int64_t j = 0; j < padded; ++j) {
                const T code = codes[j * kLanes + lane];
                wild |= !(code < kCutOff && code > -kCutOff);
            }
            for (std::int64_t j = 0; wild && j < padded; ++j) codes[j * kLanes + lane] = T(0);
        }
        for (std::int64_t i = 0; rows.lower && i < padded * kLanes; i += kWidth)
            store(codes + i, Bounds::project(load(codes + i), rows, i));
    }

    // Whether the codes of a lane cancel each other so much that a singular G says nothing about them.
    static bool is_cancelling(const Problem<T>& problem, std::int64_t padded, const Rows& rows, const Progress& progress,
                              int v, int l) {
        if (problem.most_cancellation == T(0) || rows.mask) return false;
        T gain = 0, parts = 0;
        for (std::int64_t j = 0; j < padded; ++j) {
            const std::int64_t place = j * kLanes + v * kWidth + l;
            const T code = rows.codes[place];
            if (!rows.lower) {
                gain += code * rows.rhs[place];
                continue;
            }
            // What the codes stand for; on the orthant, at the optimum, that is their part of the right-hand side. Codes
            // at a bound are exact, and others may be large because they are.
            const T own = problem.inverse_diag[j] > T(0) ? code * code / problem.inverse_diag[j] : T(0);
            const bool is_free = code > rows.lower[place] && code < rows.upper[place];
            gain += code * (rows.rhs[place] - rows.residual[place]) + (is_free ? T(0) : own);
            parts += is_free ? own : T(0);
        }
        return (rows.lower ? parts : progress.code_part[v][l]) > problem.most_cancellation * gain;
    }

    static Rows lay_out(const Problem<T>& problem, std::int64_t padded, T* scratch) {
        const std::int64_t size = padded * kLanes;
        Rows rows{scratch, scratch + size, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
        T* next = scratch + 2 * size;
        if (problem.mask) rows.mask = next, next += size;
        if (problem.lower) {
            rows.lower = next, rows.upper = next + size, rows.threshold = next + 2 * size;
            next += 3 * size;
        }
        rows.residual = next, rows.face = next + size;
        return rows;
    }

    static std::size_t scratch_size(const Problem<T>& problem) {
        const auto size = static_cast<std::size_t>(padded_atoms(problem.n_atoms)) * kLanes;
        std::size_t face = 0;
        if (problem.finishes)
            face = problem.lower ? ActiveSet<T, kBounds>::scratch_size(problem.n_atoms) + size
                                 : Face<T>::scratch_size(problem.n_atoms);
        return size * (problem.lower ? 6 : problem.mask ? 4 : 3) + face;
    }

    // One value per atom for all lanes, or a row for every signal; beyond the atoms and signals there are, `missing`.
    static void lay_out_bound(const Problem<T>& problem, const T* bound, std::int64_t first, int count, T missing,
                              T* to) {
        const std::int64_t n = problem.n_atoms;
        for (std::int64_t j = 0; j < padded_atoms(n); ++j)
            for (int lane = 0; lane < kLanes; ++lane)
                to[j * kLanes + lane] =
                    j < n && lane < count ? bound[(first + lane) * problem.bounds_stride + j] : missing;
    }

    // Bounds of the block, and codes inside them to start from; returns whether these are all zero.
    static bool lay_out_bounds(const Problem<T>& problem, std::int64_t padded, std::int64_t first, int count,
                               const Rows& rows) {
        lay_out_bound(problem, problem.lower, first, count, T(0), rows.lower);
        lay_out_bound(problem, problem.upper, first, count, T(0), rows.upper);
        lay_out_bound(problem, problem.threshold, first, count, T(0), rows.threshold);
        VecMask found{};
        for (std::int64_t i = 0; i < padded * kLanes; i += kWidth) {
            const Vec codes = Bounds::project(load(rows.codes + i), rows, i);
            found |= (VecMask)(codes != T(0));
            store(rows.codes + i, codes);
        }
        return !L::any(found);
    }

    static std::int64_t solve(const Problem<T>& problem, std::int64_t first, int count, T* scratch) {
        const std::int64_t n_atoms = problem.n_atoms, padded = padded_atoms(n_atoms), begin = first * n_atoms;
        const Rows rows = lay_out(problem, padded, scratch);

        gather(problem.rhs + begin, n_atoms, count, rows.rhs);
        fill_rows(rows.rhs, n_atoms, padded);
        if (problem.shift)
            for (std::int64_t j = 0; j < n_atoms; ++j)
                for (int v = 0; v < SCN_VECTORS; ++v) {
                    T* place = rows.rhs + j * kLanes + v * kWidth;
                    store(place, load(place) - problem.shift[j]);
                }
        for (int lane = count; lane < kLanes; ++lane)
            for (std::int64_t j = 0; j < n_atoms; ++j) rows.rhs[j * kLanes + lane] = T(0);  // no signal, no shift
        if (problem.init) gather(problem.init + begin, n_atoms, count, rows.codes);
        fill_rows(rows.codes, problem.init ? n_atoms : 0, padded);
        if (rows.mask) {
            gather(problem.mask + begin, n_atoms, count, rows.mask);
            fill_rows(rows.mask, n_atoms, padded);
        }
        const bool from_zero =
            rows.lower ? lay_out_bounds(problem, padded, first, count, rows) : problem.init == nullptr;
        Vec poison[SCN_VECTORS], most[SCN_VECTORS], unit[SCN_VECTORS];
        const bool scaled = find_poison(problem, padded, rows, poison, most) || problem.energy != T(1);
        if (problem.has_vanishing && problem.constraint != kOnSupport && is_unbounded(problem, rows))
            __atomic_store_n(problem.unbounded, static_cast<unsigned char>(1), __ATOMIC_RELAXED);
        if (scaled) scale_lanes(problem, padded, rows, most, unit);
        if (problem.init) drop_wild_starts(padded, rows);

        Progress progress;
        std::int64_t n_iter = descend(problem, padded, from_zero, rows, progress);
        VecMask open[SCN_VECTORS], solved[SCN_VECTORS] = {};
        if (problem.finishes && rows.lower) n_iter += finish_one_by_one(problem, rows, progress, solved);
        else if (problem.finishes) n_iter = finish(problem, padded, n_iter, rows, progress);

        if (rows.lower && problem.most_cancellation > T(0)) find_residuals(problem, padded, rows);
        for (int v = 0; v < SCN_VECTORS; ++v) {
            open[v] = unfinished(problem, progress, v) & ~solved[v];
            for (int l = 0; l < kWidth; ++l) open[v][l] |= is_cancelling(problem, padded, rows, progress, v, l);
        }
        if (scaled) multiply_rows(rows.codes, n_atoms, unit);
        // What was scaled may have lost digits to underflow; the bounds that were given have not.
        if (scaled && rows.lower) lay_out_bounds(problem, padded, first, count, rows);
        for (std::int64_t j = 0; j < n_atoms; ++j) {
            const T scale = problem.scale ? problem.scale[j] : T(1), offset = problem.scale ? problem.offset[j] : T(0);
            for (int v = 0; v < SCN_VECTORS; ++v) {
                T* place = rows.codes + j * kLanes + v * kWidth;
                store(place, load(place) * scale + (offset + poison[v]));
            }
        }
        scatter(rows.codes, n_atoms, count, problem.codes + begin);
        for (int lane = 0; lane < count; ++lane) {
            const int v = lane / kWidth, l = lane % kWidth;
            const T finite = T(0) * (progress.code[v][l] + progress.step[v][l] + poison[v][l]);
            problem.converged[first + lane] = finite == T(0) && !open[v][l];
        }
        return n_iter;
    }

    static Condition<T> condition(const T* gram, std::int64_t n, T relax, T* scratch) {
        return Conditioning<T>(gram, n, relax, scratch).examine();
    }
};

}  // namespace

#define SCN_JOIN_(a, b) a##_##b
#define SCN_JOIN(a, b) SCN_JOIN_(a, b)
#define SCN_KERNEL(T) \
    {Block<T>::kLanes,        Block<T>::condition, Conditioning<T>::scratch_size, Block<T>::scratch_size, \
     Block<T>::solve,         solve_one<T>,        ActiveSet<T, kNonNegative>::scratch_size}
extern const Kernel<float> SCN_JOIN(float32, SCN_ISA);
extern const Kernel<double> SCN_JOIN(float64, SCN_ISA);
const Kernel<float> SCN_JOIN(float32, SCN_ISA) = SCN_KERNEL(float);
const Kernel<double> SCN_JOIN(float64, SCN_ISA) = SCN_KERNEL(double);

}  // namespace scn
