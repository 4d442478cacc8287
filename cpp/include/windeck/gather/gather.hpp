// The gather: copies windows of columns to the contiguous arrays of a batch, and converts, scales,
// fills and masks the values in the same pass.
//
// A field is one array of the batch. Its steps are the rows anchor + offset + j * dilation of each
// step span, one step span after the other; the anchor is the window's start, or the first
// row of its series. The value of a step is
//
//     present:  value * scale + shift, the product and the sum each rounded to float64, and the sum
//               to the field's type; or the same bits where the types are equal and nothing is
//               scaled
//     missing:  fill
//
// A step is missing when its row lies outside the window's series, when the column's validity bit
// is 0, or, in fields with a mask or with fill_nan, when it is NaN and the column says that NaN is
// missing. The mask is 1 where a value is present. Floats are rounded to integers half to even.
//
// The result is the same bits for every instruction set, number of threads and layout of the
// columns. A Gather is immutable and thread-safe; it does not own the columns' memory nor the
// index.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "windeck/base/dtype.hpp"
#include "windeck/windows/windows.hpp"

namespace windeck {

struct Column {
    std::string name;
    const std::byte* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t stride = 0;  // bytes from a row to the next; any number
    DType dtype = DType::float64;
    const std::uint8_t* validity = nullptr;  // a bit per row, least significant first; 1 = present
    std::int64_t validity_offset = 0;        // the bit of row 0
    bool nan_is_missing = true;
};

/// The number of rows that are missing: validity bit 0, or NaN where NaN is missing. O(rows).
std::int64_t count_missing(const Column& column);

struct StepSpan {
    std::int64_t offset;
    std::int64_t length;
};

/// The axes of a field, outermost first: batch, time, channel. bt has one column, bc one step, b
/// one of both.
enum class Layout { btc, bct, bt, bc, b };

enum class Anchor { window, series };

/// Factors or summands: none, one per column, or one per series and column (row-major).
struct Coefficients {
    std::vector<double> values;
    bool per_series = false;
};

struct FieldSpec {
    std::string name;
    std::vector<Column> columns;
    std::vector<StepSpan> step_spans;
    std::int64_t dilation = 1;
    Layout layout = Layout::btc;
    DType dtype = DType::float32;
    bool mask = false;
    bool fill_nan = false;  // as with a mask, also in a field without one
    double fill = 0.0;
    Coefficients scale;
    Coefficients shift;
    Anchor anchor = Anchor::window;
};

/// The output of a field: batch * steps * columns values, C-contiguous and aligned to their size,
/// and as many mask bytes if it has a mask.
struct FieldOut {
    std::byte* values = nullptr;
    std::uint8_t* mask = nullptr;
};

struct CompiledField;

class Gather {
  public:
    /// `bounds`: series s is the rows [bounds[s], bounds[s + 1]). Throws std::invalid_argument when
    /// a column is shorter than the bounds, bounds decrease, the index has a series beyond the
    /// bounds, rows are outside [-2^62, 2^62], names are not unique, a field has no column or step,
    /// or more than its layout allows, the number of coefficients is wrong, or the type of a field
    /// cannot hold its `fill`.
    Gather(std::shared_ptr<const WindowIndex> index, std::vector<std::int64_t> bounds,
           std::vector<FieldSpec> fields);
    ~Gather();

    const WindowIndex& index() const noexcept { return *index_; }
    const std::vector<FieldSpec>& fields() const noexcept { return fields_; }
    /// The number of steps of a field, the sum of the lengths of its step spans.
    std::int64_t steps(std::size_t field) const noexcept;

    /// Fills one entry of `outs` for each field, and series and start row of every window, unless
    /// they are null. Throws std::out_of_range for an index that is not a window; nothing is
    /// written. Throws std::invalid_argument with the column and row of a value that the integers
    /// of a field cannot hold; the contents of `outs` are then unspecified. O(values) on `threads`
    /// threads.
    void run(std::span<const std::int64_t> indices, std::span<const FieldOut> outs,
             std::int64_t* series, std::int64_t* starts, int threads) const;

  private:
    std::shared_ptr<const WindowIndex> index_;
    std::vector<std::int64_t> bounds_;
    std::vector<FieldSpec> fields_;
    std::vector<std::unique_ptr<const CompiledField>> compiled_;
};

}  // namespace windeck
