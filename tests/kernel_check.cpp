// Solves random problems through the library's C interface and checks the optimality conditions, and that it refuses
// what it does not know: a test of the kernel on processors without Python.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>

#include "call.h"

using Values = std::vector<float>;

static Values random_gram(std::size_t n_atoms, std::mt19937& random) {
    const std::size_t n_features = 2 * n_atoms + 3;
    std::normal_distribution<float> normal;
    Values atoms(n_atoms * n_features), gram(n_atoms * n_atoms);
    for (float& value : atoms) value = normal(random) / std::sqrt(static_cast<float>(n_features));
    for (std::size_t i = 0; i < n_atoms; ++i)
        for (std::size_t j = 0; j < n_atoms; ++j)
            for (std::size_t k = 0; k < n_features; ++k)
                gram[i * n_atoms + j] += atoms[i * n_features + k] * atoms[j * n_features + k];
    return gram;
}

static ScnCall make_call(const Values& rhs, const Values& gram, Values& codes, std::vector<unsigned char>& converged) {
    ScnCall call{};
    call.interface_version = kInterfaceVersion;
    call.n_threads = 2;
    call.n_signals = static_cast<std::int64_t>(converged.size());
    call.n_atoms = static_cast<std::int64_t>(rhs.size() / converged.size());
    call.max_iter = 1000;
    call.tol = 1e-6;
    call.rhs = rhs.data();
    call.gram = gram.data();
    call.codes = codes.data();
    call.converged = converged.data();
    return call;
}

// The largest violation of the conditions for codes >= 0.
static double residual(const Values& rhs, const Values& gram, const Values& codes, std::size_t n_atoms) {
    double worst = 0;
    for (std::size_t place = 0; place < codes.size(); ++place) {
        const std::size_t i = place % n_atoms, row = place - i;
        double gradient = -rhs[place];
        for (std::size_t j = 0; j < n_atoms; ++j)
            gradient += static_cast<double>(gram[i * n_atoms + j]) * codes[row + j];
        worst = std::fmax(worst, std::fabs(std::fmin(static_cast<double>(codes[place]), gradient)));
    }
    return worst;
}

static bool solves(std::size_t n_signals, std::size_t n_atoms) {
    std::mt19937 random(static_cast<unsigned>(n_signals + n_atoms));
    std::normal_distribution<float> normal;
    const Values gram = random_gram(n_atoms, random);
    Values rhs(n_signals * n_atoms), codes(rhs.size());
    for (float& value : rhs) value = normal(random);
    std::vector<unsigned char> converged(n_signals);
    ScnCall call = make_call(rhs, gram, codes, converged);
    const int status = scn_solve(&call);
    const double worst = residual(rhs, gram, codes, n_atoms);
    if (status == kOk && worst < 1e-4) return true;
    std::printf("status %d, residual %g with %zu atoms, %zu signals\n", status, worst, n_atoms, n_signals);
    return false;
}

template <class Change>
static bool refuses(const char* what, Change change) {
    const Values rhs(4), gram(16);
    Values codes(4);
    std::vector<unsigned char> converged(1);
    ScnCall call = make_call(rhs, gram, codes, converged);
    change(call);
    if (scn_solve(&call) == kBadCall) return true;
    std::printf("%s was not refused\n", what);
    return false;
}

int main() {
    bool ok = scn_interface_version() == kInterfaceVersion;
    for (unsigned n_atoms : {1u, 4u, 7u, 16u, 33u})
        for (unsigned n_signals : {1u, 8u, 100u}) ok = solves(n_signals, n_atoms) && ok;
    ok = refuses("another version", [](ScnCall& call) { call.interface_version = kInterfaceVersion + 1; }) && ok;
    ok = refuses("an unknown constraint", [](ScnCall& call) { call.constraint = 99; }) && ok;
    ok = refuses("a support without its mask", [](ScnCall& call) { call.constraint = kOnSupport; }) && ok;
    ok = refuses("an unknown number type", [](ScnCall& call) { call.number = 99; }) && ok;
    ok = refuses("an unknown instruction set", [](ScnCall& call) { call.isa = 99; }) && ok;
    if (ok) std::puts("ok");
    return ok ? 0 : 1;
}
