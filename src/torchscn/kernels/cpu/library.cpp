// The library behind call.h: picks the instruction set, packs the Gram matrix and hands blocks of signals to threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "platform.h"
#include "problem.h"

namespace scn {

extern const Kernel<float> float32_generic;
extern const Kernel<double> float64_generic;
#ifdef SCN_X86
extern const Kernel<float> float32_avx2, float32_avx512;
extern const Kernel<double> float64_avx2, float64_avx512;
#endif

namespace {

#ifdef SCN_X86
const Kernel<float>* const float32_kernels[] = {&float32_generic, &float32_avx2, &float32_avx512};
const Kernel<double>* const float64_kernels[] = {&float64_generic, &float64_avx2, &float64_avx512};
#else
const Kernel<float>* const float32_kernels[] = {&float32_generic};
const Kernel<double>* const float64_kernels[] = {&float64_generic};
#endif

// Memory aligned for every instruction set, released with its owner.
template <class T>
class Aligned {
public:
    explicit Aligned(std::size_t count) : memory_(static_cast<T*>(::operator new(count * sizeof(T), kAlignment))) {}
    ~Aligned() { ::operator delete(memory_, kAlignment); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    T* get() { return memory_; }

private:
    static constexpr std::align_val_t kAlignment{64};
    T* memory_;
};

// What to divide G by so that squares of its numbers neither overflow nor vanish: 1, or a power of two.
template <class T>
T energy_of(const T* gram, std::int64_t n) {
    T most = 0;
    for (std::int64_t j = 0; j < n; ++j) most = std::max(most, gram[j * n + j]);
    const bool is_ordinary = most < T(1 << 20) && most * T(1 << 20) > T(1);
    return is_ordinary || most == T(0) || !std::isfinite(most) ? T(1) : std::ldexp(T(1), std::ilogb(most));
}

// Copies G, divided by `energy`, into groups of kGroup rows, column by column; returns NaN when an entry is not finite,
// otherwise 0.
template <class T>
T pack(const T* gram, std::int64_t n, T ridge, T energy, T* packed, T* inverse_diag) {
    const std::int64_t padded = padded_atoms(n);
    T poison = 0;
    for (std::int64_t j = 0; j < padded; ++j) {
        T* group = packed + j / kGroup * kGroup * padded + j % kGroup;
        for (std::int64_t k = 0; k < padded; ++k) {
            const T value = j < n && k < n ? gram[j * n + k] / energy : T(0);
            poison += T(0) * value;
            group[k * kGroup] = value;
        }
        T& diagonal = group[j * kGroup];
        diagonal += ridge * diagonal;
        const bool has_energy =
            j < n && gram[j * n + j] > smallest_energy<T>() && diagonal > std::numeric_limits<T>::min();
        inverse_diag[j] = has_energy ? T(1) / diagonal : T(0);
    }
    return poison;
}

// Over-relaxation suited to a Gram matrix; kernels/torch.py has the same formula and says where it comes from.
template <class T>
double relaxation(const T* gram, std::int64_t n) {
    std::vector<double> inverse(static_cast<std::size_t>(n)), weighted(static_cast<std::size_t>(n));
    for (std::size_t j = 0; j < inverse.size(); ++j) {
        const double energy = static_cast<double>(gram[j * inverse.size() + j]);
        inverse[j] = energy > 0 ? 1 / energy : 0;
    }
    for (std::size_t j = 0; j < inverse.size(); ++j) {
        const T* row = gram + j * inverse.size();
        for (std::size_t k = 0; k < inverse.size(); ++k) {
            const double value = static_cast<double>(row[k]);
            weighted[k] += value * value * inverse[j];
        }
    }
    double overlap = 0;
    for (std::size_t k = 0; k < inverse.size(); ++k) overlap += weighted[k] * inverse[k];
    overlap = overlap / static_cast<double>(n) - 1;
    // A matrix that is not finite falls through to 1; what is solved with it is marked anyway.
    return overlap > 0 ? 1 + 0.4 * std::min(overlap, 1.0) : 1;
}

OpenMpParallel openmp_parallel = nullptr;

// Runs region(data) on threads of our own and the caller's. Where the system gives fewer, those there are do the work.
void run_threads(Region region, void* data, std::int64_t n_threads) {
    std::vector<std::thread> others;
    try {
        others.reserve(static_cast<std::size_t>(n_threads - 1));
        for (std::int64_t i = 1; i < n_threads; ++i) others.emplace_back(region, data);
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    region(data);
    for (std::thread& other : others) other.join();
}

// Runs region(data), which throws nothing, on up to n_threads threads at once, the caller's included. Work for fewer
// takes fewer threads of our own; torch's OpenMP pool is always taken whole, as torch itself does: a smaller team would
// end the threads left out, and torch's next operation would have to start them again.
void run_parallel(Region region, void* data, std::int64_t n_threads, std::int64_t n_blocks) {
    if (n_threads <= 1 || n_blocks <= 1) return region(data);
    if (openmp_parallel) return openmp_parallel(region, data, static_cast<unsigned>(n_threads), 0);
    run_threads(region, data, std::min(n_threads, n_blocks));
}

// The status that says what is being thrown; to be called where it is caught.
ScnStatus status_of_exception() noexcept {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        return kOutOfMemory;
    } catch (...) {
        return kFailed;
    }
}

// Sweeps or steps, counted by several threads.
struct Counts {
    std::atomic<std::int64_t> most{0}, total{0};

    void add(std::int64_t own_most, std::int64_t own_total) {
        total += own_total;
        for (std::int64_t seen = most; seen < own_most && !most.compare_exchange_weak(seen, own_most);) {
        }
    }
    void report(ScnCall& call) const { call.most_sweeps = most, call.total_sweeps = total; }
};

template <class T>
struct Work {
    const Kernel<T>& kernel;
    const Problem<T>& problem;
    const std::int64_t n_blocks;
    std::atomic<std::int64_t> next_block{0};
    Counts counts{};
    std::atomic<ScnStatus> status{kOk};
};

// Solves block after block until none is left. Memory is taken only once there is a block to solve.
template <class T>
void solve_blocks(Work<T>& work) {
    std::int64_t block = work.next_block.fetch_add(1);
    if (block >= work.n_blocks) return;
    const Problem<T>& problem = work.problem;
    const std::int64_t lanes = work.kernel.lanes;
    Aligned<T> scratch(work.kernel.scratch_size(problem));
    std::int64_t most = 0, total = 0;
    for (; block < work.n_blocks; block = work.next_block.fetch_add(1)) {
        const std::int64_t first = block * lanes, count = std::min(lanes, problem.n_signals - first);
        const std::int64_t sweeps = work.kernel.solve_block(problem, first, static_cast<int>(count), scratch.get());
        most = std::max(most, sweeps);
        total += sweeps * count;
    }
    work.counts.add(most, total);
}

// kRun on the work at `data`, for several threads: what is thrown becomes the work's status.
template <class W, void (*kRun)(W&)>
void run_guarded(void* data) noexcept {
    W& work = *static_cast<W*>(data);
    try {
        kRun(work);
    } catch (...) {
        work.status = status_of_exception();
    }
}

// When to stop; false if the Gram matrix is indefinite, so that there may be no optimum to stop at.
template <class T>
bool set_rule(const Kernel<T>& kernel, const ScnCall& call, Problem<T>& problem) {
    problem.stops_early = call.tol > 0;
    problem.by_block = call.by_block != 0;
    problem.block_tol = static_cast<T>(call.tol);
    problem.is_uneven = false;
    problem.largest_step = problem.largest_code_step = problem.shortest_step = problem.most_cancellation = 0;
    problem.finishes = call.finishes != 0 && problem.stops_early;
    problem.face_ridge = std::numeric_limits<T>::epsilon() * (4 + std::sqrt(static_cast<T>(call.n_atoms)));
    // A ridge does not make an atom one that can be told from those it depends on.
    problem.least_pivot = call.ridge > 0 ? T(2.5) * (problem.face_ridge + static_cast<T>(call.ridge)) : problem.face_ridge;
    if (!problem.stops_early || problem.poison != T(0)) return true;
    Aligned<T> scratch(kernel.condition_scratch(call.n_atoms));
    const Condition<T> condition =
        kernel.condition(static_cast<const T*>(call.gram), call.n_atoms, problem.relax, scratch.get());
    const double amplification = static_cast<double>(condition.amplification);
    const double rounding = call.rounding * static_cast<double>(condition.overlap);
    const double promised = call.promise / amplification;
    // Where atoms are nearly dependent, gradients hang on the last atom of a support, and codes are held to more than
    // their promise. There sweeps leave the work to exact steps, to which it makes little difference.
    const double strict = std::max(promised * std::min(1.0, 30 / amplification), 2 * rounding);
    const double wanted = std::min({promised, strict, problem.by_block ? promised : call.tol});
    problem.shortest_step = static_cast<T>(rounding);
    problem.largest_step = static_cast<T>(std::max(wanted, rounding));
    problem.largest_code_step =
        static_cast<T>(std::max(wanted, rounding * static_cast<double>(condition.unevenness)));
    problem.is_uneven = condition.unevenness > T(1) || !condition.is_regular;
    const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
    if (!condition.is_regular) problem.most_cancellation = static_cast<T>(std::max(1.25 * call.tol * call.tol / eps, 100.0));
    return condition.is_convex;
}

template <class T>
ScnStatus solve(const Kernel<T>& kernel, ScnCall& call) {
    const std::int64_t padded = padded_atoms(call.n_atoms);
    Aligned<T> packed(static_cast<std::size_t>(padded * padded)), inverse_diag(static_cast<std::size_t>(padded));
    Problem<T> problem;
    problem.constraint = static_cast<ScnConstraint>(call.constraint);
    problem.rhs = static_cast<const T*>(call.rhs);
    problem.shift = static_cast<const T*>(call.shift);
    problem.init = static_cast<const T*>(call.init);
    problem.mask = static_cast<const T*>(call.mask);
    problem.lower = static_cast<const T*>(call.lower);
    problem.upper = static_cast<const T*>(call.upper);
    problem.threshold = static_cast<const T*>(call.threshold);
    problem.bounds_stride = call.own_bounds ? call.n_atoms : 0;
    problem.gram = static_cast<const T*>(call.gram);
    problem.packed_gram = packed.get();
    problem.inverse_diag = inverse_diag.get();
    problem.codes = static_cast<T*>(call.codes);
    problem.scale = static_cast<const T*>(call.scale);
    problem.offset = static_cast<const T*>(call.offset);
    problem.converged = call.converged;
    problem.n_signals = call.n_signals;
    problem.n_atoms = call.n_atoms;
    problem.max_iter = call.max_iter;
    const T* gram = static_cast<const T*>(call.gram);
    problem.relax = static_cast<T>(relaxation(gram, call.n_atoms));
    problem.energy = energy_of(gram, call.n_atoms);
    problem.poison = pack(gram, call.n_atoms, static_cast<T>(call.ridge), problem.energy, packed.get(),
                          inverse_diag.get());
    if (!set_rule(kernel, call, problem)) return kNotConvex;
    problem.has_vanishing = std::count(inverse_diag.get(), inverse_diag.get() + call.n_atoms, T(0)) > 0;
    unsigned char unbounded = 0;
    problem.unbounded = &unbounded;
    Work<T> work{kernel, problem, (call.n_signals + kernel.lanes - 1) / kernel.lanes};
    run_parallel(run_guarded<Work<T>, solve_blocks<T>>, &work, call.n_threads, work.n_blocks);
    work.counts.report(call);
    return work.status == kOk && unbounded ? kUnbounded : work.status.load();
}

// Problems solved one by one: with Gram matrices of their own, or under constraints that no sweep keeps.
template <class T>
struct OwnWork {
    const Kernel<T>& kernel;
    const ScnCall& call;
    std::atomic<std::int64_t> next{0};
    Counts counts{};
    std::atomic<ScnStatus> status{kOk};
};

constexpr std::int64_t kOwnAtATime = 16;

template <class T>
OneProblem<T> one_problem(const ScnCall& call, std::int64_t i) {
    const std::int64_t n = call.n_atoms, bounds = call.own_bounds ? i * n : 0;
    const auto at = [](const void* values, std::int64_t place) {
        return values ? static_cast<const T*>(values) + place : nullptr;
    };
    return {static_cast<ScnConstraint>(call.constraint),
            n,
            call.max_iter,
            at(call.gram, call.n_grams == 1 ? 0 : i * n * n),
            T(1),
            at(call.rhs, i * n),
            at(call.shift, 0),
            at(call.mask, i * n),
            at(call.lower, bounds),
            at(call.upper, bounds),
            at(call.threshold, bounds),
            call.total ? *at(call.total, i) : T(0),
            nullptr};
}

template <class T>
void solve_own_ones(OwnWork<T>& work) {
    const ScnCall& call = work.call;
    const std::int64_t n = call.n_atoms;
    Aligned<T> scratch(work.kernel.own_scratch(n));
    std::int64_t most = 0, total = 0;
    for (std::int64_t begin; (begin = work.next.fetch_add(kOwnAtATime)) < call.n_signals;)
        for (std::int64_t i = begin; i < std::min(begin + kOwnAtATime, call.n_signals); ++i) {
            std::int64_t n_steps = 0;
            const OwnStatus status = work.kernel.solve_own(one_problem<T>(call, i), static_cast<T*>(call.codes) + i * n,
                                                           n_steps, scratch.get());
            most = std::max(most, n_steps);
            total += n_steps;
            call.converged[i] = status == kOwnSolved;
            if (status == kOwnNotConvex) work.status = kNotConvex;
            if (status == kOwnUnbounded) work.status = kUnbounded;
        }
    work.counts.add(most, total);
}

template <class T>
ScnStatus solve_own(const Kernel<T>& kernel, ScnCall& call) {
    OwnWork<T> work{kernel, call};
    run_parallel(run_guarded<OwnWork<T>, solve_own_ones<T>>, &work, call.n_threads,
                 (call.n_signals + kOwnAtATime - 1) / kOwnAtATime);
    work.counts.report(call);
    return work.status.load();
}

// Whether the call is one this build understands.
bool is_known(const ScnCall& call) {
    const bool one_by_one = !call.init && !call.scale;
    if (call.n_grams != 1 && !(call.n_grams == call.n_signals && one_by_one)) return false;
    const bool known_constraint =
        call.constraint == kNonNegative || (call.constraint == kOnSupport && call.mask) ||
        (call.constraint == kBounds && call.lower && call.upper && call.threshold) ||
        (call.constraint == kSumTo && call.total && one_by_one);
    return known_constraint && call.isa >= kGeneric && call.isa <= best_isa();
}

template <class T>
ScnStatus solve_with(const Kernel<T>& kernel, ScnCall& call) {
    return call.n_grams == 1 && call.constraint != kSumTo ? solve(kernel, call) : solve_own(kernel, call);
}

ScnStatus solve_call(ScnCall& call) {
    if (call.interface_version != kInterfaceVersion) return kBadCall;
    call.most_sweeps = call.total_sweeps = 0;
    if (call.n_signals == 0) return kOk;  // before a look at pointers: those of empty tensors are null
    if (!is_known(call)) return kBadCall;
    if (call.n_atoms == 0) {
        std::memset(call.converged, 1, static_cast<std::size_t>(call.n_signals));
        return kOk;
    }
    if (call.number == kFloat32) return solve_with(*float32_kernels[call.isa], call);
    if (call.number == kFloat64) return solve_with(*float64_kernels[call.isa], call);
    return kBadCall;
}

}  // namespace
}  // namespace scn

SCN_EXPORT std::int64_t scn_interface_version() { return kInterfaceVersion; }

SCN_EXPORT int scn_best_isa() { return scn::best_isa(); }

SCN_EXPORT void scn_use_openmp(void* gomp_parallel) { scn::openmp_parallel = scn::openmp_parallel_at(gomp_parallel); }

// No C++ exception may leave the library: whoever called it knows nothing of them.
SCN_EXPORT int scn_solve(ScnCall* call) try {
    return scn::solve_call(*call);
} catch (...) {
    return scn::status_of_exception();
}
