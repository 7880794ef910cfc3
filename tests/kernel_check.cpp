// Solves random problems through the library's C interface and checks the optimality conditions: a test of the kernel
// on processors for which there is no Python at hand.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

extern "C" int scn_solve_float32(int, int, const float*, const float*, const float*, const float*, const float*, float*,
                                 unsigned char*, const float*, const float*, std::int64_t, std::int64_t, double, double, double, int, int,
                                 std::int64_t*);

static double worst_residual(int n_signals, int n_atoms) {
    const int n_features = 2 * n_atoms + 3;
    std::mt19937 random(n_signals + n_atoms);
    std::normal_distribution<float> normal;
    std::vector<float> atoms(n_atoms * n_features), gram(n_atoms * n_atoms), rhs(n_signals * n_atoms), codes(rhs.size());
    for (float& value : atoms) value = normal(random) / std::sqrt(static_cast<float>(n_features));
    for (float& value : rhs) value = normal(random);
    for (int i = 0; i < n_atoms; ++i)
        for (int j = 0; j < n_atoms; ++j)
            for (int k = 0; k < n_features; ++k) gram[i * n_atoms + j] += atoms[i * n_features + k] * atoms[j * n_features + k];
    std::vector<unsigned char> converged(n_signals);
    std::int64_t sweeps[2];
    scn_solve_float32(0, 2, rhs.data(), nullptr, gram.data(), nullptr, nullptr, codes.data(), converged.data(), nullptr, nullptr, n_signals,
                      n_atoms, 1e-6, 1.0, 0.0, 1000, 0, sweeps);
    double worst = 0;
    for (int p = 0; p < n_signals; ++p)
        for (int i = 0; i < n_atoms; ++i) {
            double gradient = -rhs[p * n_atoms + i];
            for (int j = 0; j < n_atoms; ++j) gradient += static_cast<double>(gram[i * n_atoms + j]) * codes[p * n_atoms + j];
            worst = std::fmax(worst, std::fabs(std::fmin(static_cast<double>(codes[p * n_atoms + i]), gradient)));
        }
    return worst;
}

int main() {
    for (int n_atoms : {1, 4, 7, 16, 33})
        for (int n_signals : {1, 8, 100}) {
            const double worst = worst_residual(n_signals, n_atoms);
            if (!(worst < 1e-4)) {
                std::printf("residual %g with %d atoms, %d signals\n", worst, n_atoms, n_signals);
                return 1;
            }
        }
    std::puts("ok");
}
