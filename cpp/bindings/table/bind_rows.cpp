// Reads and inserts whole rows.

#include <algorithm>
#include <vector>

#include "base/gil.hpp"
#include "table/docstrings.hpp"
#include "table/objects.hpp"

namespace windeck {
namespace {

using Bools = py::array_t<bool>;

Bools find(const Table& table, py::handle ids) {
    const Indices wanted = index_array(ids, "ids");
    Bools result(static_cast<py::ssize_t>(wanted.values.size()));
    IdMetadata facts{};
    facts.admitted = reinterpret_cast<std::uint8_t*>(result.mutable_data());
    {
        const GilRelease unlocked;
        table.facts(wanted.values, facts);
    }
    return result;
}

py::dict facts_of(const Table& table, py::handle ids) {
    const Indices wanted = index_array(ids, "ids");
    const std::size_t size = wanted.values.size();
    auto versions = fresh_int64(size);
    auto frequencies = fresh_int64(size);
    auto seen = fresh_int64(size);
    Bools admitted(static_cast<py::ssize_t>(size));
    const IdMetadata facts{versions.mutable_data(), frequencies.mutable_data(), seen.mutable_data(),
                           reinterpret_cast<std::uint8_t*>(admitted.mutable_data())};
    {
        const GilRelease unlocked;
        table.facts(wanted.values, facts);
    }
    py::dict out;
    out["versions"] = versions;
    out["frequencies"] = frequencies;
    out["seen"] = seen;
    out["admitted"] = admitted;
    return out;
}

py::array row_values(const Table& table, py::handle ids, py::handle threads) {
    const Indices wanted = index_array(ids, "ids");
    const int workers = thread_count(threads);
    py::array result =
        fresh(numpy_dtype(table.options().dtype), rows_shape(wanted.values.size(), table.width()));
    auto* const into = static_cast<std::byte*>(result.mutable_data());
    {
        const GilRelease unlocked;
        table.read(wanted.values, into, workers);
    }
    return result;
}

/// A copy of a bool array of one dimension: the number of values read depends on it, and the
/// caller could change the array while the GIL is released.
std::vector<std::uint8_t> flags(py::handle value, py::ssize_t size, const std::string& name) {
    const py::array array =
        in_array(value, py::dtype::of<bool>(), std::span<const py::ssize_t>(&size, 1), name);
    const auto* const data = static_cast<const std::uint8_t*>(array.data());
    std::vector<std::uint8_t> out(static_cast<std::size_t>(size));
    std::ranges::transform(std::span(data, out.size()), out.begin(),
                           [](std::uint8_t flag) -> std::uint8_t { return flag != 0 ? 1 : 0; });
    return out;
}

void insert(Table& table, py::handle keys, py::handle versions, py::handle frequencies,
            py::handle seen, py::handle admitted, py::handle values) {
    const Indices given = index_array(keys, "keys");
    const std::size_t size = given.values.size();
    const std::vector<std::int64_t> ids(given.values.begin(), given.values.end());
    const Indices updated = as_many(versions, "versions", size);
    const Indices counts = as_many(frequencies, "frequencies", size);
    const Indices looked = as_many(seen, "seen", size);
    const auto with_row = flags(admitted, static_cast<py::ssize_t>(size), "admitted");
    const auto rows = static_cast<std::size_t>(std::ranges::count(with_row, 1));
    const py::array given_rows = in_array(values, numpy_dtype(table.options().dtype),
                                          rows_shape(rows, table.width()), "values");
    WholeRows whole;
    whole.ids = ids;
    whole.versions = updated.values;
    whole.frequencies = counts.values;
    whole.seen = looked.values;
    whole.admitted = with_row;
    whole.values = {static_cast<const std::byte*>(given_rows.data()),
                    static_cast<std::size_t>(given_rows.nbytes())};
    const GilRelease unlocked;
    table.insert({&whole, 1});
}

}  // namespace

void bind_table_rows(py::class_<Table>& table) {
    table.def("find", &find, py::arg("ids"), "Return a bool array, True for each id with a row.")
        .def("facts", &facts_of, py::arg("ids"), docs::facts)
        .def("row_values", &row_values, py::arg("ids"), py::kw_only(), py::arg("threads") = 1,
             docs::row_values)
        .def("insert", &insert, py::arg("keys"), py::arg("versions"), py::arg("frequencies"),
             py::arg("seen"), py::arg("admitted"), py::arg("values"), docs::insert);
}

}  // namespace windeck
