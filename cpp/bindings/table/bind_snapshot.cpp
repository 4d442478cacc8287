#include <pybind11/typing.h>

#include "base/gil.hpp"
#include "base/numbers.hpp"
#include "table/docstrings.hpp"
#include "table/objects.hpp"

namespace windeck {
namespace {

using Ids = py::array_t<std::int64_t>;

std::int64_t since_of(py::handle since) {
    return integer(since, "since");
}

Ids counts(const PySnapshot& self, const IntegerLike& since) {
    const std::int64_t clock = since_of(since.value);
    const auto snapshot = self.get();
    std::array<std::int64_t, bucket_count> found{};
    {
        const GilRelease unlocked;
        found = snapshot->counts(clock);
    }
    return int64_array(found);
}

py::dict read(const PySnapshot& self, const IntegerLike& first_bucket,
              const IntegerLike& end_bucket, const IntegerLike& since) {
    const auto first =
        static_cast<int>(integer(first_bucket.value, "first_bucket", 0, bucket_count));
    const auto end = static_cast<int>(integer(end_bucket.value, "end_bucket", first, bucket_count));
    const std::int64_t clock = since_of(since.value);
    const auto snapshot = self.get();
    TableSnapshot::Selection selection;
    {
        const GilRelease unlocked;
        selection = snapshot->select(first, end, clock);
    }
    const std::size_t size = selection.entries.size();
    auto keys = fresh_int64(size);
    auto versions = fresh_int64(size);
    auto frequencies = fresh_int64(size);
    auto seen = fresh_int64(size);
    py::array_t<bool> admitted(static_cast<py::ssize_t>(size));
    py::array values =
        fresh(numpy_dtype(snapshot->dtype()),
              rows_shape(static_cast<std::size_t>(selection.admitted), snapshot->width()));
    const IdMetadata facts{versions.mutable_data(), frequencies.mutable_data(), seen.mutable_data(),
                           reinterpret_cast<std::uint8_t*>(admitted.mutable_data())};
    std::int64_t* const ids = keys.mutable_data();
    auto* const rows = static_cast<std::byte*>(values.mutable_data());
    {
        const GilRelease unlocked;
        snapshot->read(selection.entries, ids, facts, rows);
    }
    py::dict out;
    out["keys"] = keys;
    out["versions"] = versions;
    out["frequencies"] = frequencies;
    out["seen"] = seen;
    out["admitted"] = admitted;
    out["values"] = values;
    return out;
}

py::typing::Tuple<Ids, Ids> dead(const PySnapshot& self, const IntegerLike& since) {
    const std::int64_t clock = since_of(since.value);
    const auto snapshot = self.get();
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    {
        const GilRelease unlocked;
        found = snapshot->dead(clock);
    }
    auto keys = fresh_int64(found.size());
    auto clocks = fresh_int64(found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        keys.mutable_data()[i] = found[i].first;
        clocks.mutable_data()[i] = found[i].second;
    }
    return py::make_tuple(keys, clocks);
}

}  // namespace

std::shared_ptr<const TableSnapshot> PySnapshot::get() const {
    const std::lock_guard lock(mutex_);
    if (!snapshot_) throw py::value_error("the snapshot is closed, expected one that is open");
    return snapshot_;
}

void PySnapshot::close() {
    std::shared_ptr<const TableSnapshot> last;  // freed without the lock
    const std::lock_guard lock(mutex_);
    last.swap(snapshot_);
}

void bind_table_snapshot(py::module_& m) {
    py::class_<PySnapshot> snapshot(m, "EmbeddingSnapshot", docs::snapshot);
    snapshot
        .def_property_readonly(
            "clock", [](const PySnapshot& self) { return self.get()->clock(); },
            "The clock of the table when the snapshot was taken.")
        .def_property_readonly(
            "width", [](const PySnapshot& self) { return self.get()->width(); },
            "The number of numbers of a row, (1 + slots) * dim.")
        .def_property_readonly(
            "history", [](const PySnapshot& self) { return self.get()->history(); },
            "The history of the table when the snapshot was taken.")
        .def_property_readonly(
            "rows", [](const PySnapshot& self) { return self.get()->admitted(); },
            "The number of ids with a row.")
        .def(
            "__len__", [](const PySnapshot& self) { return self.get()->size(); },
            "The number of ids, with or without a row.")
        .def("counts", &counts, py::arg("since") = -1, docs::counts)
        .def("read", &read, py::arg("first_bucket"), py::arg("end_bucket"), py::arg("since") = -1,
             docs::read)
        .def("dead", &dead, py::arg("since") = -1, docs::dead)
        .def("close", &PySnapshot::close, py::call_guard<GilRelease>(),
             "Release the memory; a second call does nothing.")
        .def("__enter__",
             [](py::object self) {
                 (void)self.cast<const PySnapshot&>().get();
                 return self;
             })
        .def(
            "__exit__",
            [](PySnapshot& self, const py::object&, const py::object&, const py::object&) {
                const GilRelease unlocked;
                self.close();
            },
            py::arg("kind"), py::arg("error"), py::arg("trace"));
    py::cast<py::class_<Table>>(m.attr("EmbeddingCore"))
        .def(
            "snapshot",
            [](Table& table) {
                std::shared_ptr<const TableSnapshot> taken;
                {
                    const GilRelease unlocked;
                    taken = table.snapshot();
                }
                return std::make_unique<PySnapshot>(std::move(taken));
            },
            docs::take);
}

}  // namespace windeck
