// Solves random problems through the library's C interface and checks the optimality conditions, and that it refuses
// what it does not know: a test of the kernel on processors without Python.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "call.h"

// Number type, with the tag of the interface.
template <class T> constexpr std::int32_t kNumber = sizeof(T) == sizeof(float) ? kFloat32 : kFloat64;

template <class T>
static std::vector<T> random_gram(std::size_t n_atoms, std::size_t n_features, double ridge, std::mt19937& random) {
    std::normal_distribution<double> normal;
    std::vector<double> atoms(n_atoms * n_features);
    std::vector<T> gram(n_atoms * n_atoms);
    for (double& value : atoms) value = normal(random) / std::sqrt(static_cast<double>(n_features));
    for (std::size_t i = 0; i < n_atoms; ++i)
        for (std::size_t j = 0; j < n_atoms; ++j) {
            double sum = i == j ? ridge : 0;
            for (std::size_t k = 0; k < n_features; ++k) sum += atoms[i * n_features + k] * atoms[j * n_features + k];
            gram[i * n_atoms + j] = static_cast<T>(sum);
        }
    return gram;
}

template <class T>
static ScnCall make_call(const std::vector<T>& rhs, const std::vector<T>& gram, std::vector<T>& codes,
                         std::vector<unsigned char>& converged) {
    ScnCall call{};
    call.interface_version = kInterfaceVersion;
    call.number = kNumber<T>;
    call.n_threads = 2;
    call.n_signals = static_cast<std::int64_t>(converged.size());
    call.n_atoms = static_cast<std::int64_t>(rhs.size() / converged.size());
    call.n_grams = 1;
    call.max_iter = 1000;
    call.tol = 1e-6;
    call.promise = 1e-5;
    call.rounding = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
    call.rhs = rhs.data();
    call.gram = gram.data();
    call.codes = codes.data();
    call.converged = converged.data();
    return call;
}

// The largest violation of the optimality conditions: for codes >= 0, or on the support where there is a mask.
template <class T>
static double residual(const std::vector<T>& rhs, const std::vector<T>& gram, const std::vector<T>& codes,
                       const std::vector<T>& mask, std::size_t n_atoms) {
    double worst = 0;
    for (std::size_t place = 0; place < codes.size(); ++place) {
        const std::size_t i = place % n_atoms, row = place - i;
        double gradient = -static_cast<double>(rhs[place]);
        for (std::size_t j = 0; j < n_atoms; ++j)
            gradient += static_cast<double>(gram[i * n_atoms + j]) * static_cast<double>(codes[row + j]);
        const double code = static_cast<double>(codes[place]);
        const double violation = mask.empty() ? std::fmin(code, gradient) : mask[place] > T(0) ? gradient : code;
        worst = std::fmax(worst, std::fabs(violation));
    }
    return worst;
}

// Solves random problems with `n_features` features to an atom's own; few features need exact steps. With `own`, every
// signal has its copy of the Gram matrix.
template <class T>
static bool solves(std::size_t n_signals, std::size_t n_atoms, std::size_t n_features, bool on_support, bool own) {
    std::mt19937 random(static_cast<unsigned>(n_signals + n_atoms));
    std::normal_distribution<double> normal;
    const std::vector<T> gram = random_gram<T>(n_atoms, n_features, 1e-3, random);
    std::vector<T> rhs(n_signals * n_atoms), codes(rhs.size()), mask(on_support ? rhs.size() : 0);
    for (T& value : rhs) value = static_cast<T>(normal(random));
    for (T& value : mask) value = static_cast<T>(normal(random));
    std::vector<unsigned char> converged(n_signals);
    ScnCall call = make_call(rhs, gram, codes, converged);
    call.finishes = 1;
    call.by_block = static_cast<std::int32_t>(n_signals % 2);
    if (on_support) call.constraint = kOnSupport, call.mask = mask.data();
    std::vector<T> copies;
    for (std::size_t i = 0; own && i < n_signals; ++i) copies.insert(copies.end(), gram.begin(), gram.end());
    if (own) call.gram = copies.data(), call.n_grams = call.n_signals;
    const int status = scn_solve(&call);
    // Codes are around 1,000 where atoms are nearly dependent. Sweeps end in a small residual by themselves.
    const double in_float32 = own ? 1e-2 : 2e-3, allowed = sizeof(T) == sizeof(float) ? in_float32 : 1e-4;
    const double worst = residual(rhs, gram, codes, mask, n_atoms);
    bool all = status == kOk && worst < allowed;
    for (unsigned char done : converged) all = all && done;
    if (!all)
        std::printf("status %d, residual %g with %zu atoms, %zu features, %zu signals\n", status, worst, n_atoms,
                    n_features, n_signals);
    return all;
}

// The same under bounds, some of them infinite, or with a sum: everything is solved, and the codes are allowed.
template <class T>
static bool keeps(ScnConstraint constraint, std::size_t n_signals, std::size_t n_atoms, std::size_t n_features, bool own) {
    std::mt19937 random(static_cast<unsigned>(n_signals + n_atoms));
    std::normal_distribution<double> normal;
    const std::vector<T> gram = random_gram<T>(n_atoms, n_features, 1e-1, random);
    const T infinite = std::numeric_limits<T>::infinity();
    std::vector<T> rhs(n_signals * n_atoms), codes(rhs.size()), total(n_signals, T(2));
    std::vector<T> lower(own ? rhs.size() : n_atoms), upper(lower.size()), threshold(lower.size(), T(0.1));
    for (T& value : rhs) value = static_cast<T>(normal(random));
    for (std::size_t i = 0; i < lower.size(); ++i) {
        lower[i] = i % 3 == 0 ? -infinite : static_cast<T>(normal(random));
        upper[i] = i % 4 == 0 ? infinite : (i % 3 == 0 ? T(0) : lower[i]) + static_cast<T>(i % 5);
    }
    std::vector<unsigned char> converged(n_signals);
    ScnCall call = make_call(rhs, gram, codes, converged);
    call.finishes = 1;
    call.constraint = constraint;
    call.own_bounds = own;
    if (constraint == kSumTo) call.total = total.data();
    else call.lower = lower.data(), call.upper = upper.data(), call.threshold = threshold.data();
    const int status = scn_solve(&call);
    bool all = status == kOk;
    for (unsigned char done : converged) all = all && done;
    for (std::size_t i = 0; i < codes.size(); ++i) {
        const std::size_t bound = own ? i : i % n_atoms;
        all = all && (constraint == kSumTo ? codes[i] >= T(0) : codes[i] >= lower[bound] && codes[i] <= upper[bound]);
    }
    for (std::size_t i = 0; constraint == kSumTo && i < n_signals; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < n_atoms; ++j) sum += static_cast<double>(codes[i * n_atoms + j]);
        all = all && std::fabs(sum - 2) < 1e-5;
    }
    if (!all) std::printf("constraint %d: status %d with %zu atoms, %zu features, %zu signals\n", constraint, status,
                          n_atoms, n_features, n_signals);
    return all;
}

template <class T>
static bool solves_all() {
    bool ok = true;
    for (unsigned n_atoms : {1u, 4u, 7u, 16u, 33u})
        for (unsigned n_signals : {1u, 8u, 101u})
            for (unsigned n_features : {2 * n_atoms + 3, n_atoms / 3 + 1})
                for (bool on_support : {false, true})
                    for (bool own : {false, true})
                        ok = solves<T>(n_signals, n_atoms, n_features, on_support, own) &&
                             keeps<T>(on_support ? kBounds : kSumTo, n_signals, n_atoms, n_features, own) && ok;
    return ok;
}

template <class Change>
static bool refuses(const char* what, Change change) {
    const std::vector<float> rhs(4), gram(16);
    std::vector<float> codes(4);
    std::vector<unsigned char> converged(1);
    ScnCall call = make_call(rhs, gram, codes, converged);
    change(call);
    if (scn_solve(&call) == kBadCall) return true;
    std::printf("%s was not refused\n", what);
    return false;
}

// A matrix with a negative eigenvalue, and an atom without energy that wants a code.
static bool refuses_bad_problems() {
    const std::vector<float> rhs{1, 1}, indefinite{1, 2, 2, 1}, empty{1, 0, 0, 0};
    std::vector<float> codes(2);
    std::vector<unsigned char> converged(1);
    ScnCall call = make_call(rhs, indefinite, codes, converged);
    if (scn_solve(&call) != kNotConvex) return std::puts("an indefinite matrix was not refused"), false;
    call.gram = empty.data();
    if (scn_solve(&call) != kUnbounded) return std::puts("an unbounded problem was not refused"), false;
    return true;
}

int main() {
    bool ok = scn_interface_version() == kInterfaceVersion;
    ok = solves_all<float>() && solves_all<double>() && ok;
    ok = refuses("another version", [](ScnCall& call) { call.interface_version = kInterfaceVersion + 1; }) && ok;
    ok = refuses("an unknown constraint", [](ScnCall& call) { call.constraint = 99; }) && ok;
    ok = refuses("a support without its mask", [](ScnCall& call) { call.constraint = kOnSupport; }) && ok;
    ok = refuses("bounds without numbers", [](ScnCall& call) { call.constraint = kBounds; }) && ok;
    ok = refuses("a sum without a total", [](ScnCall& call) { call.constraint = kSumTo; }) && ok;
    ok = refuses("an unknown number type", [](ScnCall& call) { call.number = 99; }) && ok;
    ok = refuses("two matrices for one signal", [](ScnCall& call) { call.n_grams = 2; }) && ok;
    ok = refuses("an unknown instruction set", [](ScnCall& call) { call.isa = 99; }) && ok;
    ok = refuses_bad_problems() && ok;
    if (ok) std::puts("ok");
    return ok ? 0 : 1;
}
