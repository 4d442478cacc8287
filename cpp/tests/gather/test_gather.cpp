#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "gather/kernels/gather.hpp"
#include "windeck/base/dispatch.hpp"
#include "windeck/gather/gather.hpp"

using namespace windeck;

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// A gather of one field over one series of `rows` rows, a window at every row.
Gather one_field(FieldSpec spec, std::int64_t rows) {
    const std::vector<std::int64_t> first{0};
    const std::vector<std::int64_t> count{rows};
    return Gather(std::make_shared<WindowIndex>(first, count, 1), {0, rows}, {std::move(spec)});
}

Column column_of(const std::vector<double>& values) {
    Column column;
    column.name = "load";
    column.data = reinterpret_cast<const std::byte*>(values.data());
    column.rows = static_cast<std::int64_t>(values.size());
    column.stride = sizeof(double);
    return column;
}

FieldSpec spec_of(std::vector<Column> columns, DType dtype, bool mask) {
    FieldSpec spec;
    spec.name = "past";
    spec.columns = std::move(columns);
    spec.step_spans = {{-1, 3}};
    spec.dtype = dtype;
    spec.mask = mask;
    spec.fill = 9;
    return spec;
}

void fills_masks_and_scales() {
    const std::vector<double> a{1, nan, 3, 4};
    const std::vector<double> b{5, 6, 7, nan};
    FieldSpec spec = spec_of({column_of(a), column_of(b)}, DType::float32, true);
    spec.scale = {{2, 10}, false};
    spec.shift = {{0, 1}, false};
    const Gather gather = one_field(std::move(spec), 4);
    const std::vector<std::int64_t> indices{0, 3, 2};
    std::vector<float> values(18);
    std::vector<std::uint8_t> mask(18);
    std::vector<std::int64_t> series(3);
    std::vector<std::int64_t> starts(3);
    const FieldOut out{reinterpret_cast<std::byte*>(values.data()), mask.data()};
    for (const int threads : {1, 3}) {
        gather.run(indices, {&out, 1}, series.data(), starts.data(), threads);
        const std::vector<float> expected{9, 9,  2, 51, 9, 61,  // rows -1, 0, 1
                                          6, 71, 8, 9,  9, 9,   // rows 2, 3, 4
                                          9, 61, 6, 71, 8, 9};
        check(values == expected, "values");
        for (std::size_t i = 0; i < 18; ++i)
            check(mask[i] == (expected[i] != 9 ? 1 : 0), "mask");
        check(starts == indices && series == std::vector<std::int64_t>(3, 0), "places");
    }
}

/// Two channels copied as they are, each by itself, with masks: one column has no NaN to look for.
void copies_channels() {
    std::vector<double> a(400);
    std::vector<double> b(400);
    for (std::size_t i = 0; i < 400; ++i) {
        a[i] = static_cast<double>(i);
        b[i] = i % 7 == 0 ? nan : -static_cast<double>(i);
    }
    Column whole = column_of(a);
    whole.nan_is_missing = false;
    for (const std::int64_t offset : {0, -1}) {  // every window in its series; the first one not
        FieldSpec spec = spec_of({whole, column_of(b)}, DType::float64, true);
        spec.step_spans = {{offset, 3}};
        spec.layout = Layout::bct;
        const std::vector<std::int64_t> first{0};
        const std::vector<std::int64_t> count{398};
        const Gather gather(std::make_shared<WindowIndex>(first, count, 1), {0, 400}, {spec});
        std::vector<std::int64_t> indices(398);
        for (std::size_t i = 0; i < indices.size(); ++i)
            indices[i] = static_cast<std::int64_t>(i * 151 % indices.size());
        std::vector<double> values(indices.size() * 6);
        std::vector<std::uint8_t> mask(values.size());
        const FieldOut out{reinterpret_cast<std::byte*>(values.data()), mask.data()};
        gather.run(indices, {&out, 1}, nullptr, nullptr, 1);
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::int64_t row = indices[i / 6] + offset + static_cast<std::int64_t>(i % 3);
            const auto& column = i % 6 < 3 ? a : b;
            const double value = row < 0 ? nan : column[static_cast<std::size_t>(row)];
            check(mask[i] == (std::isnan(value) ? 0 : 1), "mask of a channel");
            check(values[i] == (std::isnan(value) ? 9 : value), "value of a channel");
        }
    }
}

void refuses() {
    const std::vector<double> values{1, 2.5, 300, 4};
    const std::int64_t index = 1;
    std::byte memory[64];
    std::int64_t series = 0;
    std::int64_t start = 0;
    const FieldOut out{memory, nullptr};
    const Gather narrow = one_field(spec_of({column_of(values)}, DType::int8, false), 4);
    check_throws<std::invalid_argument>(
        [&] { narrow.run({&index, 1}, {&out, 1}, &series, &start, 1); },
        "column 'load' of field 'past' holds 300 at row 2, which int8 cannot hold");
    const std::int64_t outside = 4;
    check_throws<std::out_of_range>(
        [&] { narrow.run({&outside, 1}, {&out, 1}, &series, &start, 1); },
        "index 4 is out of range for 4 windows");
    check_throws<std::invalid_argument>(
        [&] { one_field(spec_of({column_of(values)}, DType::float32, false), 5); },
        "has column 'load' of 4 rows, expected 5");
}

// ---- the levels of the kernels against each other

std::vector<const GatherKernels*> levels() {
    std::vector<const GatherKernels*> found{&baseline::gather_kernels};
#if defined(__x86_64__)
    if (simd() >= Simd::avx2) found.push_back(&avx2::gather_kernels);
    if (simd() >= Simd::avx512) found.push_back(&avx512::gather_kernels);
#endif
    return found;
}

std::uint32_t float_bits(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    return bits;
}

/// Copies of every number of bytes around those where another way is taken, aligned or not, write
/// those bytes only. They read no others: the source ends with them, which the sanitizers watch.
void copies_bytes() {
    std::vector<std::int64_t> sizes;
    for (std::int64_t n = 1; n <= 200; ++n)
        sizes.push_back(n);
    for (std::int64_t n = 4060; n <= 4130; ++n)
        sizes.push_back(n);
    for (const GatherKernels* kernels : levels()) {
        for (const std::int64_t n : sizes) {
            for (const std::int64_t shift : {0, 1, 4, 31}) {
                std::vector<std::uint8_t> in(static_cast<std::size_t>(n + shift));
                for (std::size_t i = 0; i < in.size(); ++i)
                    in[i] = static_cast<std::uint8_t>(1 + i % 251);
                std::vector<std::uint8_t> out(static_cast<std::size_t>(n + shift + 40));
                std::vector<std::uint8_t> expected(out.size());
                std::copy(in.begin() + shift, in.end(), expected.begin() + shift);
                kernels->copy(in.data() + shift, n, out.data() + shift);
                check(out == expected, "the bytes that were copied");
            }
        }
    }
}

/// Every float16 and bfloat16 to float64 and back is itself; NaN stays NaN.
void every_short_float_returns() {
    for (const GatherKernels* kernels : levels()) {
        for (const DType dtype : {DType::float16, DType::bfloat16}) {
            const auto type = static_cast<std::size_t>(dtype);
            std::vector<std::uint16_t> all(65536);
            for (std::size_t i = 0; i < all.size(); ++i)
                all[i] = static_cast<std::uint16_t>(i);
            std::vector<double> wide(all.size());
            std::vector<std::uint16_t> back(all.size());
            kernels->widen[type](all.data(), 65536, wide.data());
            kernels->convert64[type](wide.data(), 65536, nullptr, nullptr, 0, nullptr, back.data());
            for (std::size_t i = 0; i < all.size(); ++i) {
                const bool kept =
                    std::isnan(wide[i]) ? (back[i] & 0x7fff) > 0x7c00 : back[i] == all[i];
                check(kept, "a short float returns");
            }
        }
    }
}

/// Around every midpoint of neighbouring bfloat16 and float16 a float64 is rounded once.
void midpoints_are_rounded_once() {
    for (const DType dtype : {DType::float16, DType::bfloat16}) {
        const auto type = static_cast<std::size_t>(dtype);
        const std::uint16_t last = dtype == DType::float16 ? 0x7bff : 0x7f7f;
        for (const GatherKernels* kernels : levels()) {
            for (std::uint16_t bits = 0; bits < last; ++bits) {
                const std::uint16_t pair[2] = {bits, static_cast<std::uint16_t>(bits + 1)};
                double ends[2];
                kernels->widen[type](pair, 2, ends);
                const double middle = ends[0] / 2 + ends[1] / 2;
                const double tries[3] = {std::nextafter(middle, ends[0]), middle,
                                         std::nextafter(middle, ends[1])};
                std::uint16_t found[3];
                kernels->convert64[type](tries, 3, nullptr, nullptr, 0, nullptr, found);
                check(found[0] == pair[0] && found[2] == pair[1], "the nearer neighbour");
                check(found[1] == pair[bits % 2 == 0 ? 0 : 1], "ties to even");
            }
        }
    }
}

void levels_agree() {
    std::mt19937_64 random(2);
    for (int round = 0; round < 300; ++round) {
        const auto n = static_cast<std::int64_t>(random() % 300);
        const auto size = static_cast<std::size_t>(n);
        std::vector<double> in(size);
        for (double& value : in) {
            const std::uint64_t bits = random();
            std::memcpy(&value, &bits, 8);
            if (bits % 5 == 0) value = nan;
            if (bits % 5 == 1) value = static_cast<double>(bits % 1000) / 7;
        }
        std::vector<double> factors(96);
        for (double& factor : factors)
            factor = static_cast<double>(random() % 100) / 7 - 5;
        for (const std::int64_t period : {0, 1, 48}) {
            std::vector<float> expected(size);
            std::vector<std::uint8_t> there(size);
            for (std::size_t i = 0; i < size; ++i) {
                const std::size_t c = period == 0 ? 0 : i % static_cast<std::size_t>(period);
                const double scaled = period == 0 ? in[i] : in[i] * factors[c] + factors[c + 48];
                expected[i] = std::isnan(in[i]) ? -1.5F : static_cast<float>(scaled);
                there[i] = std::isnan(in[i]) ? 0 : 1;
            }
            for (const GatherKernels* kernels : levels()) {
                std::vector<float> out(size);
                std::vector<std::uint8_t> present(size);
                kernels->convert_and_find_nan(in.data(), n, factors.data(), factors.data() + 48,
                                              period, -1.5F, out.data(), present.data());
                check(present == there, "presence");
                for (std::size_t i = 0; i < size; ++i) {
                    const bool same = float_bits(out[i]) == float_bits(expected[i]) ||
                                      (std::isnan(out[i]) && std::isnan(expected[i]));
                    check(same, "every level gives the same bits");
                }
            }
        }
    }
}

}  // namespace

int main() {
    fills_masks_and_scales();
    copies_channels();
    refuses();
    copies_bytes();
    every_short_float_returns();
    midpoints_are_rounded_once();
    levels_agree();
}
