// The library's C interface: picks the instruction set, packs the Gram matrix and hands blocks of signals to threads.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "problem.h"

namespace scn {

extern const Kernel<float> float32_generic;
extern const Kernel<double> float64_generic;
#ifdef SCN_X86
extern const Kernel<float> float32_avx2, float32_avx512;
extern const Kernel<double> float64_avx2, float64_avx512;
#endif

namespace {

enum Isa { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

template <class T>
const Kernel<T>* pick(int isa, const Kernel<T>* generic, const Kernel<T>* avx2, const Kernel<T>* avx512) {
    return isa == kAvx512 ? avx512 : isa == kAvx2 ? avx2 : generic;
}
#ifdef SCN_X86
const Kernel<float>* kernel_for(int isa, float) { return pick(isa, &float32_generic, &float32_avx2, &float32_avx512); }
const Kernel<double>* kernel_for(int isa, double) { return pick(isa, &float64_generic, &float64_avx2, &float64_avx512); }
#else
const Kernel<float>* kernel_for(int, float) { return &float32_generic; }
const Kernel<double>* kernel_for(int, double) { return &float64_generic; }
#endif

// 64-byte aligned memory that is released with its owner.
template <class T>
class Aligned {
public:
    explicit Aligned(std::size_t count) {
        if (posix_memalign(&memory_, 64, (count + 1) * sizeof(T))) throw std::bad_alloc();
    }
    ~Aligned() { std::free(memory_); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    T* get() { return static_cast<T*>(memory_); }

private:
    void* memory_ = nullptr;
};

// Copies G into groups of kGroup rows, column by column; returns NaN when an entry is not finite, otherwise 0.
template <class T>
T pack(const T* gram, std::int64_t n, T ridge, T* packed, T* inverse_diag) {
    const std::int64_t padded = padded_atoms(n);
    T poison = 0;
    for (std::int64_t j = 0; j < padded; ++j) {
        T* group = packed + j / kGroup * kGroup * padded + j % kGroup;
        for (std::int64_t k = 0; k < padded; ++k) {
            const T value = j < n && k < n ? gram[j * n + k] : T(0);
            poison += T(0) * value;
            group[k * kGroup] = value;
        }
        T& diagonal = group[j * kGroup];
        diagonal += ridge * diagonal;
        inverse_diag[j] = diagonal > T(0) ? T(1) / diagonal : T(0);
    }
    return poison;
}

using Region = void (*)(void*);
using OpenMpParallel = void (*)(Region, void*, unsigned, unsigned);
OpenMpParallel openmp_parallel = nullptr;

// Runs region(data) on n_threads threads at once, the caller's included.
void run_parallel(Region region, void* data, int n_threads) {
    if (n_threads <= 1) return region(data);
    if (openmp_parallel) return openmp_parallel(region, data, static_cast<unsigned>(n_threads), 0);
    std::vector<std::thread> others;
    for (int i = 1; i < n_threads; ++i) others.emplace_back(region, data);
    region(data);
    for (std::thread& other : others) other.join();
}

template <class T>
struct Work {
    const Kernel<T>* kernel;
    const Problem<T>* problem;
    std::int64_t n_blocks;
    std::atomic<std::int64_t> next_block{0};
    std::atomic<int> most_sweeps{0};
    std::atomic<std::int64_t> total_sweeps{0};
    std::atomic<bool> out_of_memory{false};
};

template <class T>
void solve_blocks(Work<T>& work) {
    const Problem<T>& problem = *work.problem;
    Aligned<T> scratch(work.kernel->scratch_size(problem));
    int most = 0;
    std::int64_t total = 0;
    for (std::int64_t block; (block = work.next_block.fetch_add(1)) < work.n_blocks;) {
        const std::int64_t first = block * work.kernel->lanes;
        const std::int64_t left = problem.n_signals - first;
        const int count = static_cast<int>(left < work.kernel->lanes ? left : work.kernel->lanes);
        const int sweeps = work.kernel->solve_block(problem, first, count, scratch.get());
        most = sweeps > most ? sweeps : most;
        total += static_cast<std::int64_t>(sweeps) * count;
    }
    work.total_sweeps += total;
    for (int seen = work.most_sweeps; seen < most && !work.most_sweeps.compare_exchange_weak(seen, most);) {
    }
}

template <class T>
void solve_region(void* data) {
    Work<T>& work = *static_cast<Work<T>*>(data);
    try {
        solve_blocks(work);
    } catch (const std::bad_alloc&) {
        work.out_of_memory = true;
    }
}

// What the C interface takes; the pointers and numbers of Problem, and how to run.
template <class T>
struct Call {
    int isa, n_threads;
    const T *rhs, *shift, *gram, *init, *support;
    T* codes;
    unsigned char* converged;
    const T *scale, *offset;
    std::int64_t n_signals, n_atoms;
    double tol, relax, ridge;
    int max_iter, as_block;
};

// Returns 0, or 1 when memory ran out. sweeps[0] receives the most sweeps of any block, sweeps[1] the sum over signals.
template <class T>
int solve(const Call<T>& call, std::int64_t* sweeps) try {
    const std::int64_t padded = padded_atoms(call.n_atoms);
    Aligned<T> packed(static_cast<std::size_t>(padded * padded)), inverse_diag(static_cast<std::size_t>(padded));
    Problem<T> problem;
    problem.rhs = call.rhs;
    problem.shift = call.shift;
    problem.init = call.init;
    problem.support = call.support;
    problem.packed_gram = packed.get();
    problem.inverse_diag = inverse_diag.get();
    problem.codes = call.codes;
    problem.scale = call.scale;
    problem.offset = call.offset;
    problem.converged = call.converged;
    problem.n_signals = call.n_signals;
    problem.n_atoms = call.n_atoms;
    problem.tol = static_cast<T>(call.tol);
    problem.as_block = call.as_block != 0;
    problem.relax = static_cast<T>(call.relax);
    problem.max_iter = call.max_iter;
    problem.poison = pack(call.gram, call.n_atoms, static_cast<T>(call.ridge), packed.get(), inverse_diag.get());
    Work<T> work;
    work.kernel = kernel_for(call.isa, T());
    work.problem = &problem;
    work.n_blocks = (call.n_signals + work.kernel->lanes - 1) / work.kernel->lanes;
    run_parallel(solve_region<T>, &work, work.n_blocks > 1 ? call.n_threads : 1);
    sweeps[0] = work.most_sweeps;
    sweeps[1] = work.total_sweeps;
    return work.out_of_memory;
} catch (const std::bad_alloc&) {
    return 1;
}

}  // namespace
}  // namespace scn

#define SCN_EXPORT extern "C" __attribute__((visibility("default")))

// The best instruction set this processor runs: 0 generic, 1 avx2, 2 avx512.
SCN_EXPORT int scn_best_isa() {
#ifdef SCN_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return scn::kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return scn::kAvx2;
#endif
    return scn::kGeneric;
}

// Hands over the GOMP_parallel of the OpenMP runtime that torch uses, so that both share one pool of threads.
SCN_EXPORT void scn_use_openmp(void* gomp_parallel) {
    scn::openmp_parallel = reinterpret_cast<scn::OpenMpParallel>(gomp_parallel);
}

#define SCN_DEFINE_SOLVE(name, T)                                                                                  \
    SCN_EXPORT int name(int isa, int n_threads, const T* rhs, const T* shift, const T* gram, const T* init,        \
                        const T* support, T* codes, unsigned char* converged, const T* scale, const T* offset,     \
                        std::int64_t n_signals, std::int64_t n_atoms, double tol, double relax, double ridge,      \
                        int max_iter, int as_block, std::int64_t* sweeps) {                                        \
        return scn::solve<T>({isa, n_threads, rhs, shift, gram, init, support, codes, converged, scale, offset,    \
                              n_signals, n_atoms, tol, relax, ridge, max_iter, as_block},                          \
                             sweeps);                                                                              \
    }
SCN_DEFINE_SOLVE(scn_solve_float32, float)
SCN_DEFINE_SOLVE(scn_solve_float64, double)
