// One problem by itself, solved exactly: the active-set method of Lawson and Hanson, with a Cholesky factor that grows and
// shrinks with the support, the atoms whose codes can move.
//
// Atoms are brought to norms between 1 and 2 first, so that rounding means the same for all of them.
//
// Where codes have a sum, one atom is the reference: it takes what the others leave of the sum, and the others are
// measured from it, which leaves a problem of codes of at least zero. When nothing is left for it, another one becomes
// the reference.
#pragma once
#include "lanes.h"

namespace scn {
namespace {

template <class T>
constexpr T infinity() {
    return T(__builtin_inf());
}

// For kNonNegative (and kOnSupport, which only needs the linear system), kBounds or kSumTo.
template <class T, ScnConstraint kConstraint>
class ActiveSet {
    using L = Lanes<T>;
    using Vec = typename L::Vec;
    using Unaligned = typename L::Unaligned;
    static constexpr int kWidth = L::kWidth;
    static constexpr int kMostAttempts = 3;
    static constexpr T kDoubt = kConstraint == kNonNegative ? 64 : 4;  // how much more than rounding is not put up with
    static constexpr bool kBounded = kConstraint == kBounds, kSummed = kConstraint == kSumTo;

public:
    // Values of scratch memory: the scaled matrix, the factor, fourteen vectors, and the atoms of the support twice.
    static std::size_t scratch_size(std::int64_t n) { return static_cast<std::size_t>(2 * n * n + 16 * n + 64); }

    ActiveSet(const OneProblem<T>& problem, T* scratch) : problem_(problem), n_(problem.n_atoms) {
        gram_ = scratch;
        factor_ = gram_ + n_ * n_;
        inverse_ = factor_ + n_ * n_;
        inverse_norm_ = inverse_ + n_;
        right_ = inverse_norm_ + n_;
        gradient_ = right_ + n_;
        code_ = gradient_ + n_;
        step_ = code_ + n_;
        barred_ = step_ + n_;
        dependent_ = barred_ + n_;
        lower_ = dependent_ + n_;
        upper_ = lower_ + n_;
        threshold_ = upper_ + n_;
        sign_ = threshold_ + n_;
        free_ = sign_ + n_;
        norm_ = free_ + n_;
        atoms_ = reinterpret_cast<std::int32_t*>(norm_ + n_);
        rest_ = atoms_ + n_;
    }

    OwnStatus solve(T* codes, std::int64_t& n_steps) {
        const bool finite = scale(), has_mask = problem_.constraint == kOnSupport;
        OwnStatus status = kOwnFailed;
        n_steps = has_mask ? 1 : 0;
        if (finite && is_indefinite_) return kOwnNotConvex;
        if (finite && is_unbounded_ && !has_mask) return kOwnUnbounded;
        if (finite) {
            begin();
            status = has_mask ? solve_on_support() : descend(n_steps);
        }
        for (std::int64_t j = 0; j < n_; ++j)
            codes[j] = finite ? code_[j] * (inverse_norm_[j] > T(0) ? inverse_norm_[j] : T(1)) : T(__builtin_nan(""));
        if (kSummed && finite) codes[reference_] = left_of_sum();
        return status;
    }

private:
    // Everything divided by the norms of the atoms; an atom without energy is barred by a zero. Returns whether all
    // numbers are finite.
    bool scale() {
        if constexpr (kSummed) return scale_summed();
        const T* gram = problem_.gram;
        T poison = 0;
        for (std::int64_t j = 0; j < n_; ++j) {
            const T energy = gram[j * n_ + j] / problem_.energy;
            // A power of two, which rounds nothing.
            inverse_norm_[j] = energy > T(0) ? T(1) / L::power_of_two(Vec{} + root(energy))[0] : T(0);
            is_indefinite_ |= energy < T(0);
        }
        const T largest = (T(1) + 32 * rounding()) * (T(1) + 32 * rounding());
        for (std::int64_t j = 0; j < n_; ++j) {
            const T* row = gram + j * n_;
            const T own = inverse_norm_[j] / problem_.energy;
            T* to = gram_ + j * n_;
            for (std::int64_t k = 0; k < n_; ++k) {
                poison += T(0) * row[k];
                to[k] = row[k] * own * inverse_norm_[k];
            }
            const T value = problem_.shift ? problem_.right[j] - problem_.shift[j] : problem_.right[j];
            poison += T(0) * value;
            right_[j] = value * inverse_norm_[j];
            if constexpr (kBounded) scale_bounds(j);
            is_unbounded_ |= row[j] <= smallest_energy<T>() && pulls(j, value);
        }
        // No two atoms have a product larger than that of their norms.
        for (std::int64_t j = 0; j < n_; ++j)
            for (std::int64_t k = 0; k < j; ++k) {
                const T product = gram_[j * n_ + k];
                is_indefinite_ |= product * product > largest * gram_[j * n_ + j] * gram_[k * n_ + k];
            }
        return poison == T(0);
    }

    T right(std::int64_t j) const {
        return problem_.shift ? problem_.right[j] - problem_.shift[j] : problem_.right[j];
    }

    // Begins with all of the sum for the atom that is best alone.
    bool scale_summed() {
        const T* gram = problem_.gram;
        T poison = 0, lowest = infinity<T>(), largest = 0;
        for (std::int64_t i = 0; i < n_ * n_; ++i) poison += T(0) * gram[i];
        for (std::int64_t j = 0; j < n_; ++j) {
            const T energy = gram[j * n_ + j], value = energy * problem_.total / 2 - right(j);
            largest = energy > largest ? energy : largest;
            poison += T(0) * right(j);
            is_indefinite_ |= energy < T(0);
            norm_[j] = root(energy);
            if (value < lowest) lowest = value, reference_ = j;
        }
        is_unbounded_ = largest <= smallest_energy<T>() && (largest > T(0) || lowest != T(0));  // digits are lost
        if (poison == T(0) && !is_indefinite_) measure_from_reference();
        return poison == T(0);
    }

    void measure_from_reference() {
        const std::int64_t r = reference_;
        const T* gram = problem_.gram;
        const T own = gram[r * n_ + r];
        for (std::int64_t j = 0; j < n_; ++j) {
            T energy = gram[j * n_ + j] - 2 * gram[j * n_ + r] + own;
            const T size = norm_[j] + norm_[r];
            is_indefinite_ |= energy < -32 * rounding() * size * size;
            energy = larger(energy, 4 * rounding() * size * size);
            inverse_norm_[j] = energy > T(0) && j != r ? T(1) / L::power_of_two(Vec{} + root(energy))[0] : T(0);
        }
        for (std::int64_t j = 0; j < n_; ++j) {
            const T to_reference = gram[j * n_ + r];
            for (std::int64_t k = 0; k < n_; ++k)
                gram_[j * n_ + k] = (gram[j * n_ + k] - to_reference - (gram[k * n_ + r] - own)) * inverse_norm_[j] *
                                    inverse_norm_[k];
            // An atom that is nearly the reference has an energy lost in rounding, but the right-hand side may tell.
            const T size = (norm_[j] + norm_[r]) * inverse_norm_[j];
            gram_[j * n_ + j] = larger(gram_[j * n_ + j], 4 * rounding() * size * size);
            right_[j] = (right(j) - right(r) - problem_.total * (to_reference - own)) * inverse_norm_[j];
        }
    }

    static T larger(T a, T b) { return a > b ? a : b; }

    // What the other codes leave of the sum.
    T left_of_sum() const {
        T left = problem_.total;
        for (std::int64_t p = 0; p < size_; ++p) left -= inverse_norm_[atoms_[p]] * code_[atoms_[p]];
        return left > T(0) ? left : T(0);
    }

    // How much of the step uses up what is left of the sum; more than 1 where it does not.
    T part_to_sum() const {
        T used = 0;
        for (std::int64_t p = 0; p < size_; ++p) used += inverse_norm_[atoms_[p]] * step_[p];
        const T left = left_of_sum();
        return left <= used ? (used > T(0) ? left / used : T(2)) : T(2);
    }

    // The atom with the largest code takes over; codes are kept, except that the old reference has none.
    void change_reference() {
        std::int64_t n_rest = 0;
        T most = -1;
        for (std::int64_t p = 0; p < size_; ++p) {
            T& code = code_[atoms_[p]];
            code *= inverse_norm_[atoms_[p]];
            if (code > most) most = code, reference_ = atoms_[p];
        }
        for (std::int64_t p = 0; p < size_; ++p)
            if (atoms_[p] != reference_) rest_[n_rest++] = atoms_[p];
        measure_from_reference();
        code_[reference_] = T(0);
        size_ = 0;
        for (std::int64_t i = 0; i < n_rest; ++i) {
            const bool is_other = inverse_norm_[rest_[i]] > T(0);
            code_[rest_[i]] = is_other ? code_[rest_[i]] / inverse_norm_[rest_[i]] : T(0);
            if (is_other) append(rest_[i]);
        }
    }

    void scale_bounds(std::int64_t j) {
        const T norm = inverse_norm_[j] > T(0) ? T(1) / inverse_norm_[j] : T(1);
        lower_[j] = problem_.lower[j] * norm;
        upper_[j] = problem_.upper[j] * norm;
        threshold_[j] = problem_.threshold[j] * inverse_norm_[j];
        const T start = problem_.start ? problem_.start[j] * norm : T(0);
        code_[j] = start < lower_[j] ? lower_[j] : start > upper_[j] ? upper_[j] : start;
        free_[j] = sign_[j] = T(0);
    }

    // Whether a right-hand side moves a code from where it starts.
    bool pulls(std::int64_t j, T value) const {
        if constexpr (!kBounded) return value > T(0);
        const T weight = problem_.threshold[j];
        return value > weight ? problem_.upper[j] > T(0) : value < -weight && problem_.lower[j] < T(0);
    }

    T rounding() const { return epsilon<T>() * T(n_ + 8); }

    void begin() {
        for (std::int64_t j = 0; j < n_; ++j) {
            barred_[j] = T(0);
            if constexpr (!kBounded) code_[j] = T(0);
        }
        if constexpr (kBounded)
            for (std::int64_t j = 0; j < n_; ++j)
                if (inverse_norm_[j] > T(0) && code_[j] > lower_[j] && code_[j] < upper_[j] &&
                    (code_[j] != T(0) || threshold_[j] == T(0))) {
                    choose_side(j, code_[j] > T(0));
                    append(static_cast<std::int32_t>(j));
                }
        find_gradient();
    }

    OwnStatus solve_on_support() {
        for (std::int64_t j = 0; j < n_; ++j)
            if (problem_.mask[j] > T(0) && inverse_norm_[j] > T(0)) append(static_cast<std::int32_t>(j));
        if (is_indefinite_) return kOwnNotConvex;
        // The second time for what rounding has left.
        for (int i = 0; i < 2; ++i) {
            find_step(true);
            for (std::int64_t p = 0; p < size_; ++p) code_[atoms_[p]] += step_[p];
            find_gradient();
        }
        return kOwnSolved;
    }

    OwnStatus descend(std::int64_t& n_steps) {
        const std::int64_t max_iter = problem_.max_iter;
        bool arrived = size_ == 0;
        for (; !arrived && size_ > 0 && n_steps < max_iter; ++n_steps) arrived = move();
        int attempts = 0;
        for (bool polished = false; n_steps < max_iter;) {
            if (is_indefinite_) return kOwnNotConvex;
            bool upwards = true;
            const std::int64_t entering = steepest(upwards);
            if (entering < 0) {
                if (polished || size_ == 0) {
                    // What rounding has spoilt and atoms that could not move are tried again, but not forever.
                    lift_bars();
                    if (steepest(upwards) < 0 && is_settled()) return kOwnSolved;
                    if (++attempts > kMostAttempts)
                        return steepest(upwards, kDoubt) < 0 && is_settled() ? kOwnSolved : kOwnFailed;
                    polished = false;
                    continue;
                }
                // Once more at the end, for what rounding has left.
                polished = arrived = move();
                ++n_steps;
                continue;
            }
            polished = false;
            const std::int64_t reference_before = reference_;
            const T before = code_[entering];
            choose_side(entering, before == T(0) ? upwards : before > T(0));
            append(static_cast<std::int32_t>(entering));
            if (is_indefinite_) return kOwnNotConvex;
            arrived = false;
            for (; !arrived && size_ > 0 && n_steps < max_iter; ++n_steps) arrived = move();
            // Atoms that were of no use may be, now that another one has joined.
            if (code_[entering] != before || reference_ != reference_before) lift_bars();
        }
        bool upwards = true;
        lift_bars();
        return arrived && steepest(upwards) < 0 ? kOwnSolved : kOwnFailed;
    }

    // Lets every atom be tried.
    void lift_bars() {
        for (std::int64_t j = 0; j < n_; ++j) barred_[j] = T(0);
    }

    // Whether nothing pulls the codes on the support any more, beyond doubt.
    bool is_settled() const {
        const T total = total_size();
        for (std::int64_t p = 0; p < size_; ++p)
            if (size_of(slope(atoms_[p])) > kDoubt * 8 * epsilon<T>() * summed_up(atoms_[p], total)) return false;
        return true;
    }

    // The gradient of a free code, less what a threshold takes off.
    T slope(std::int64_t j) const { return kBounded ? gradient_[j] - sign_[j] * threshold_[j] : gradient_[j]; }

    // What the gradients are sums of: the part of the codes, and for one atom all of it.
    T total_size() const {
        T total = kSummed ? 2 * norm_[reference_] * left_of_sum() : T(0);
        for (std::int64_t j = 0; j < n_; ++j)
            total += kSummed ? code_[j] * inverse_norm_[j] * (norm_[j] + norm_[reference_]) : size_of(code_[j]);
        return total;
    }
    T summed_up(std::int64_t j, T total) const {
        if constexpr (kSummed)
            return (size_of(right(j)) + size_of(right(reference_)) + (norm_[j] + norm_[reference_]) * total) *
                   inverse_norm_[j];
        return size_of(right_[j]) + total + (kBounded ? threshold_[j] : T(0));
    }

    // The side of zero on which a free code with a threshold stays.
    void choose_side(std::int64_t j, bool positive) {
        if constexpr (kBounded) sign_[j] = threshold_[j] == T(0) ? T(0) : positive ? T(1) : T(-1);
    }

    // The atom off the support that lowers the objective fastest, and in which direction; -1 where none does beyond
    // rounding.
    std::int64_t steepest(bool& upwards, T doubt = T(1)) const {
        const T total = total_size();
        T most = 0;
        std::int64_t found = -1;
        for (std::int64_t j = 0; j < n_; ++j) {
            if ((kBounded ? free_[j] : code_[j]) != T(0) || barred_[j] != T(0) || inverse_norm_[j] == T(0)) continue;
            T gain = gradient_[j];
            bool up = true;
            if constexpr (kBounded) gain = gain_off_support(j, up);
            if (gain > most && gain > doubt * 8 * epsilon<T>() * summed_up(j, total)) most = gain, found = j, upwards = up;
        }
        return found;
    }

    // What a code at one of its ends gains by leaving it.
    T gain_off_support(std::int64_t j, bool& up) const {
        const T code = code_[j], weight = threshold_[j];
        const T above = code < upper_[j] ? gradient_[j] - (code >= T(0) ? weight : -weight) : -infinity<T>();
        const T below = code > lower_[j] ? -gradient_[j] - (code <= T(0) ? weight : -weight) : -infinity<T>();
        up = above >= below;
        return up ? above : below;
    }

    static T size_of(T value) { return value > T(0) ? value : -value; }

    // Where a free code must stop.
    T low_end(std::int64_t j) const {
        if constexpr (!kBounded) return T(0);
        return sign_[j] > T(0) && lower_[j] < T(0) ? T(0) : lower_[j];
    }
    T high_end(std::int64_t j) const {
        if constexpr (!kBounded) return infinity<T>();
        return sign_[j] < T(0) && upper_[j] > T(0) ? T(0) : upper_[j];
    }
    bool is_inside(std::int64_t j, T code) const {
        if constexpr (!kBounded) return code > T(0);
        return code > low_end(j) && code < high_end(j);
    }
    // The end that a step leads to.
    T end(std::int64_t j, T step) const {
        if constexpr (!kBounded) return T(0);
        return step < T(0) ? low_end(j) : step > T(0) ? high_end(j) : code_[j];
    }

    // Goes to the optimum on the support, or to where the first code on the way reaches an end, and takes that atom off.
    // Returns whether it has arrived.
    bool move() {
        find_step(false);
        T length = free_length();
        // Where no atom stands in the way along a dependence, there is nothing to gain on it beyond rounding.
        if (has_dependent() && (length == T(1) || !has_finite_step())) find_step(true), length = free_length();
        const bool sum_is_used_up = kSummed && part_to_sum() <= length;
        if (sum_is_used_up) length = part_to_sum();
        bool arrived = !sum_is_used_up;
        std::int64_t first_leaving = size_;
        for (std::int64_t p = size_ - 1; p >= 0; --p) {
            const std::int32_t atom = atoms_[p];
            T& code = code_[atom];
            const T next = code + length * step_[p];
            const bool leaves = !is_inside(atom, next) || (length < T(1) && part_to_end(p) <= length);
            const T stop = end(atom, step_[p]);
            // An atom that cannot move must wait until another one has joined.
            if (leaves && code == stop) barred_[atom] = T(1);
            code = leaves ? stop : next;
            if (leaves) arrived = false, first_leaving = p, atoms_[p] = -1;
            if constexpr (kBounded)
                if (leaves) free_[atom] = sign_[atom] = T(0);
        }
        if (first_leaving < size_) factorize_from(first_leaving);
        if (sum_is_used_up) {
            const std::int64_t left = reference_;
            change_reference();
            // As above.
            if (length == T(0)) barred_[left] = T(1);
        }
        find_gradient();
        return arrived;
    }

    // How much of the step brings the code at place p to an end; 1 where none does.
    T part_to_end(std::int64_t p) const {
        const std::int32_t atom = atoms_[p];
        const T code = code_[atom], step = step_[p];
        if (is_inside(atom, code + step)) return T(1);
        if (step == T(0)) return T(1);
        const T stop = end(atom, step);
        if (code == stop) return !kBounded && step > T(0) ? T(1) : T(0);
        return (stop - code) / step;
    }

    // How much of the step can be taken before the first code is at an end.
    T free_length() const {
        T length = 1;
        for (std::int64_t p = 0; p < size_; ++p) {
            const T part = part_to_end(p);
            length = part < length ? part : length;
        }
        return length;
    }

    bool has_finite_step() const {
        T poison = 0;
        for (std::int64_t p = 0; p < size_; ++p) poison += T(0) * step_[p];
        return poison == T(0);
    }

    bool has_dependent() const {
        for (std::int64_t p = 0; p < size_; ++p)
            if (dependent_[p] > T(0)) return true;
        return false;
    }

    // Takes the atoms marked -1 off the support, the first of which stands at `first`.
    void factorize_from(std::int64_t first) {
        std::int64_t n_rest = 0;
        for (std::int64_t p = first; p < size_; ++p)
            if (atoms_[p] >= 0) rest_[n_rest++] = atoms_[p];
        size_ = first;
        for (std::int64_t i = 0; i < n_rest; ++i) append(rest_[i]);
    }

    // How much more rounding there is in products with an atom than its norm explains: it may be a small difference.
    T noise(std::int64_t atom) const {
        if constexpr (!kSummed) return T(1);
        const T size = (norm_[atom] + norm_[reference_]) * inverse_norm_[atom];
        const T found = T(1) + size * size, most = T(1) / (16 * rounding());
        return found < most ? found : most;
    }

    // Adds an atom to the support. One that depends on those there gets the smallest pivot that rounding can tell from
    // none, so that the next step goes far along the dependence, to where another atom leaves.
    void append(std::int32_t atom) {
        const T* row = gram_ + atom * n_;
        for (std::int64_t p = 0; p < size_; ++p) step_[p] = row[atoms_[p]];
        solve_lower(false);
        const T pivot = row[atom] - dot(step_, step_, size_), least = 4 * rounding() * row[atom] * noise(atom);
        for (std::int64_t p = 0; p < size_; ++p) factor_[p * n_ + size_] = step_[p];
        if (pivot < -8 * least) {
            // Rounding of the matrix shows as often as the atoms there are needed to make up this one.
            solve_upper(false);
            T weight = 1;
            for (std::int64_t p = 0; p < size_; ++p) weight += size_of(step_[p]);
            is_indefinite_ |= pivot < -8 * least * weight * weight;
        }
        dependent_[size_] = pivot > least ? T(0) : T(1);
        inverse_[size_] = T(1) / root(pivot > least ? pivot : least);
        atoms_[size_++] = atom;
        if constexpr (kBounded) free_[atom] = T(1);
    }

    // step = A^-1 gradient on the support, less what a threshold takes off; with `keep_dependent`, codes of atoms that
    // depend on those before them stay.
    void find_step(bool keep_dependent) {
        for (std::int64_t p = 0; p < size_; ++p) step_[p] = slope(atoms_[p]);
        solve_lower(keep_dependent);
        solve_upper(keep_dependent);
    }

    T inverse(std::int64_t p, bool keep_dependent) const {
        return keep_dependent && dependent_[p] > T(0) ? T(0) : inverse_[p];
    }

    // step = L'^-1 step
    void solve_upper(bool keep_dependent) {
        for (std::int64_t p = size_ - 1; p >= 0; --p) {
            const T* column = factor_ + p * n_;
            step_[p] -= dot(column + p + 1, step_ + p + 1, size_ - p - 1);
            step_[p] *= inverse(p, keep_dependent);
        }
    }

    // step = L^-1 step; the factor lies column by column.
    void solve_lower(bool keep_dependent) {
        for (std::int64_t p = 0; p < size_; ++p) {
            step_[p] *= inverse(p, keep_dependent);
            subtract(step_[p], factor_ + p * n_ + p + 1, size_ - p - 1, step_ + p + 1);
        }
    }

    // gradient = right - codes G
    void find_gradient() {
        for (std::int64_t j = 0; j < n_; ++j) gradient_[j] = right_[j];
        if constexpr (kBounded) {
            // Codes at a bound are off the support, but need not be zero.
            for (std::int64_t j = 0; j < n_; ++j)
                if (code_[j] != T(0)) subtract(code_[j], gram_ + j * n_, n_, gradient_);
        } else {
            for (std::int64_t p = 0; p < size_; ++p) subtract(code_[atoms_[p]], gram_ + atoms_[p] * n_, n_, gradient_);
        }
    }

    static void subtract(T factor, const T* from, std::int64_t count, T* to) {
        std::int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth)
            *reinterpret_cast<Unaligned*>(to + i) -= factor * L::load_unaligned(from + i);
        for (; i < count; ++i) to[i] -= factor * from[i];
    }

    static T dot(const T* a, const T* b, std::int64_t count) {
        Vec sums{};
        std::int64_t i = 0;
        for (; i + kWidth <= count; i += kWidth) sums += L::load_unaligned(a + i) * L::load_unaligned(b + i);
        T total = L::sum(sums);
        for (; i < count; ++i) total += a[i] * b[i];
        return total;
    }

    const OneProblem<T>& problem_;
    const std::int64_t n_;
    std::int64_t size_ = 0;
    bool is_indefinite_ = false, is_unbounded_ = false;
    T *gram_, *factor_, *inverse_, *inverse_norm_, *right_, *gradient_, *code_, *step_, *barred_, *dependent_;
    T *lower_, *upper_, *threshold_;  // of the codes, for kBounds
    T* sign_;                         // side of zero of a free code with a threshold, otherwise 0
    T* free_;                         // 1 on the support, for kBounds, where codes off it need not be zero
    T* norm_;                         // of the atoms before they are measured from the reference, for kSumTo
    std::int64_t reference_ = 0;
    std::int32_t *atoms_, *rest_;
};

template <class T>
OwnStatus solve_one(const OneProblem<T>& problem, T* codes, std::int64_t& n_steps, T* scratch) {
    switch (problem.constraint) {
        case kBounds: return ActiveSet<T, kBounds>(problem, scratch).solve(codes, n_steps);
        case kSumTo: return ActiveSet<T, kSumTo>(problem, scratch).solve(codes, n_steps);
        case kNonNegative:
        case kOnSupport: break;
    }
    return ActiveSet<T, kNonNegative>(problem, scratch).solve(codes, n_steps);
}

}  // namespace
}  // namespace scn
