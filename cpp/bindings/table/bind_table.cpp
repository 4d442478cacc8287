#include <array>
#include <limits>
#include <string>

#include "base/batch.hpp"
#include "base/gil.hpp"
#include "base/numbers.hpp"
#include "bindings.hpp"
#include "table/docstrings.hpp"
#include "table/objects.hpp"

namespace windeck {
namespace {

using Ids = py::array_t<std::int64_t>;

constexpr double infinity = std::numeric_limits<double>::infinity();

Initializer initializer_of(const std::string& name) {
    if (name == "normal") return Initializer::normal;
    if (name == "uniform") return Initializer::uniform;
    if (name == "zeros") return Initializer::zeros;
    throw py::value_error("initializer is '" + name + "', expected 'normal', 'uniform' or 'zeros'");
}

const char* name_of(Initializer kind) {
    switch (kind) {
        case Initializer::normal:
            return "normal";
        case Initializer::uniform:
            return "uniform";
        default:
            return "zeros";
    }
}

Update::Kind kind_of(const std::string& name) {
    if (name == "sgd") return Update::Kind::sgd;
    if (name == "adagrad") return Update::Kind::adagrad;
    if (name == "adam") return Update::Kind::adam;
    throw py::value_error("kind is '" + name + "', expected 'sgd', 'adagrad' or 'adam'");
}

std::unique_ptr<Table> make(const IntegerLike& dim, const IntegerLike& slots,
                            const std::string& initializer, py::handle scale, py::handle slot_value,
                            const IntegerLike& seed, const IntegerLike& admit_after,
                            const IntegerLike& first_bucket, const IntegerLike& end_bucket,
                            const std::string& dtype) {
    TableOptions options;
    options.dim = integer(dim.value, "dim", 1, std::int64_t{1} << 20);
    options.slots = integer(slots.value, "slots", 0, 8);
    options.initializer = initializer_of(initializer);
    options.scale = real(scale, "scale", 0, infinity);
    constexpr double most = std::numeric_limits<float>::max();
    options.slot_value = static_cast<float>(real(slot_value, "slot_value", -most, most));
    options.seed = uint64(seed.value, "seed");
    options.admit_after = integer(admit_after.value, "admit_after", 1, clock_limit);
    options.first_bucket =
        static_cast<int>(integer(first_bucket.value, "first_bucket", 0, bucket_count));
    options.end_bucket = static_cast<int>(
        integer(end_bucket.value, "end_bucket", options.first_bucket, bucket_count));
    const auto named = dtype_named(dtype);
    if (named != DType::float32 && named != DType::bfloat16)
        throw py::value_error("dtype is '" + dtype + "', expected 'float32' or 'bfloat16'");
    options.dtype = *named;
    return std::make_unique<Table>(options);
}

/// A new array of rows. Large arrays are in memory of the pool: the system would otherwise unmap
/// the pages of each array, and map and zero them again for the next.
py::array fresh_rows(const py::dtype& dtype, std::span<const py::ssize_t> shape) {
    constexpr std::size_t large = std::size_t{128} << 10;
    auto bytes = static_cast<std::size_t>(dtype.itemsize());
    for (const py::ssize_t extent : shape)
        bytes *= static_cast<std::size_t>(extent);
    if (bytes < large) return fresh(dtype, shape);
    const auto [data, owner] = pooled_memory(bytes);
    return {dtype, std::vector<py::ssize_t>(shape.begin(), shape.end()), std::vector<py::ssize_t>(),
            data, owner};
}

py::array lookup(Table& table, py::handle ids, const py::object& out, bool insert,
                 py::handle threads) {
    const Indices wanted = index_array(ids, "ids");
    const int workers = thread_count(threads);
    const auto shape = rows_shape(wanted.values.size(), table.options().dim);
    const py::dtype dtype = numpy_dtype(table.options().dtype);
    py::array result =
        out.is_none() ? fresh_rows(dtype, shape) : out_array(out, dtype, shape, "out");
    require_disjoint({extent(result, "out")}, {extent(wanted.owner, "ids")});
    auto* const into = static_cast<std::byte*>(result.mutable_data());
    {
        const GilRelease unlocked;
        if (insert) {
            table.lookup_insert(wanted.values, into, workers);
        } else {
            table.lookup(wanted.values, into, workers);
        }
    }
    return result;
}

std::int64_t apply(Table& table, py::handle ids, py::handle gradients, const std::string& kind,
                   py::handle lr, py::handle eps, py::handle beta1, py::handle beta2,
                   py::handle weight_decay, py::handle threads) {
    const Indices given = index_array(ids, "ids");
    const auto shape = rows_shape(given.values.size(), table.options().dim);
    const py::array rows = in_array(gradients, py::dtype::of<float>(), shape, "grads");
    Update update;
    update.kind = kind_of(kind);
    update.lr = real(lr, "lr", 0, infinity);
    update.eps = real(eps, "eps", 0, infinity);
    update.beta1 = real(beta1, "beta1", 0, 1, true);
    update.beta2 = real(beta2, "beta2", 0, 1, true);
    update.weight_decay = real(weight_decay, "weight_decay", 0, infinity);
    const int workers = thread_count(threads);
    const auto* const data = static_cast<const float*>(rows.data());
    const GilRelease unlocked;
    return table.apply(given.values, data, update, workers);
}

Ids evict(Table& table, py::handle seen_before, py::handle l2_below, py::handle frequency_below) {
    Eviction which;
    if (!seen_before.is_none()) which.seen_before = integer(seen_before, "seen_before");
    if (!l2_below.is_none()) which.l2_below = real(l2_below, "l2_below", 0, infinity);
    if (!frequency_below.is_none()) {
        which.frequency_below = integer(frequency_below, "frequency_below");
    }
    if (!which.seen_before && !which.l2_below && !which.frequency_below) {
        throw py::value_error(
            "no condition is given, expected seen_before, l2_below or frequency_below");
    }
    std::vector<std::int64_t> gone;
    {
        const GilRelease unlocked;
        gone = table.evict(which);
    }
    return int64_array(gone);
}

std::int64_t remove(Table& table, py::handle ids) {
    const Indices given = index_array(ids, "ids");
    const GilRelease unlocked;
    return table.remove(given.values);
}

std::string repr(const Table& table) {
    const GilRelease unlocked;
    const TableOptions& options = table.options();
    return "EmbeddingCore(" + std::to_string(options.dim) +
           ", slots=" + std::to_string(options.slots) + ", buckets=[" +
           std::to_string(options.first_bucket) + ", " + std::to_string(options.end_bucket) +
           "), " + std::to_string(table.admitted()) + " ids, clock " +
           std::to_string(table.clock()) + ")";
}

Ids buckets(py::handle ids) {
    const Indices given = index_array(ids, "ids");
    auto result = fresh_int64(given.values.size());
    std::int64_t* const out = result.mutable_data();
    const GilRelease unlocked;
    for (std::size_t i = 0; i < given.values.size(); ++i)
        out[i] = bucket_of(given.values[i]);
    return result;
}

/// A call without arguments. The GIL is released while it waits for the lock of the table.
template <auto Method>
std::int64_t number(const Table& table) {
    const GilRelease unlocked;
    return (table.*Method)();
}

void bind_options(py::class_<Table>& table) {
    const auto option = [&](const char* name, auto member, const char* doc) {
        table.def_property_readonly(
            name, [member](const Table& self) { return self.options().*member; }, doc);
    };
    option("dim", &TableOptions::dim, "The number of numbers of an embedding.");
    option("slots", &TableOptions::slots,
           "The number of vectors of `dim` numbers after each embedding.");
    option("scale", &TableOptions::scale, "The scale of initial values.");
    option("slot_value", &TableOptions::slot_value, "The initial value of slots.");
    option("seed", &TableOptions::seed, "The seed of the initial values.");
    option("admit_after", &TableOptions::admit_after,
           "The number of lookups after which an id gets a row.");
    option("first_bucket", &TableOptions::first_bucket, "The first bucket of this table.");
    option("end_bucket", &TableOptions::end_bucket, "The bucket after the last one of this table.");
    table.def_property_readonly(
        "dtype", [](const Table& self) { return name(self.options().dtype); },
        "The dtype of rows and slots, \"float32\" or \"bfloat16\".");
    table.def_property_readonly(
        "initializer", [](const Table& self) { return name_of(self.options().initializer); },
        "The distribution of initial values: 'normal', 'uniform' or 'zeros'.");
}

}  // namespace

void bind_table(py::module_& m) {
    py::class_<Table> table(m, "EmbeddingCore", docs::table);
    table
        .def(py::init(&make), py::arg("dim"), py::kw_only(), py::arg("slots") = 0,
             py::arg("initializer") = "normal", py::arg("scale") = 0.01,
             py::arg("slot_value") = 0.0, py::arg("seed") = 0, py::arg("admit_after") = 1,
             py::arg("first_bucket") = 0, py::arg("end_bucket") = bucket_count,
             py::arg("dtype") = "float32")
        .def("lookup", &lookup, py::arg("ids"), py::arg("out") = py::none(), py::kw_only(),
             py::arg("insert"), py::arg("threads") = 1, docs::lookup)
        .def("apply", &apply, py::arg("ids"), py::arg("grads"), py::kw_only(), py::arg("kind"),
             py::arg("lr"), py::arg("eps") = 1e-10, py::arg("beta1") = 0.9,
             py::arg("beta2") = 0.999, py::arg("weight_decay") = 0.0, py::arg("threads") = 1,
             docs::apply)
        .def("evict", &evict, py::kw_only(), py::arg("seen_before") = py::none(),
             py::arg("l2_below") = py::none(), py::arg("frequency_below") = py::none(), docs::evict)
        .def("remove", &remove, py::arg("ids"), docs::remove)
        .def(
            "reserve",
            [](Table& self, const IntegerLike& ids) {
                const std::int64_t count = integer(ids.value, "ids", 0, clock_limit);
                const GilRelease unlocked;
                self.reserve(count);
            },
            py::arg("ids"), "Reserve space in the index for this many ids in all.")
        .def(
            "set_clock",
            [](Table& self, const IntegerLike& clock) {
                const std::int64_t to = integer(clock.value, "clock", 0, clock_limit);
                const GilRelease unlocked;
                self.set_clock(to);
            },
            py::arg("clock"), "Set the clock, 0 to 2**62, for a restore.")
        .def(
            "advance",
            [](Table& self, const IntegerLike& steps) {
                const std::int64_t by = integer(steps.value, "steps", 0, clock_limit);
                const GilRelease unlocked;
                self.advance(by);
            },
            py::arg("steps"),
            "Add to the clock, and to each version and seen that is not 0: ages stay. O(ids).")
        .def(
            "forget_dead",
            [](Table& self, const IntegerLike& clock) {
                const std::int64_t until = integer(clock.value, "clock");
                const GilRelease unlocked;
                self.forget_dead(until);
            },
            py::arg("clock"), "Forget the dead ids whose clock is at most this.")
        .def("clear", &Table::clear, py::call_guard<GilRelease>(),
             "Reset the table to its initial state: no ids, no dead ids, clock 0.")
        .def_property_readonly("clock", &number<&Table::clock>, "The number of updates so far.")
        .def_property_readonly("history", &number<&Table::history>,
                               "The number of changes that counts and dead of a snapshot do not "
                               "show: insert, set_clock, "
                               "advance, clear, and forget_dead of any id.")
        .def("__len__", &number<&Table::admitted>, "The number of ids with a row.")
        .def_property_readonly("counted", &number<&Table::counted>,
                               "The number of ids without a row that were looked up.")
        .def_property_readonly("bytes", &number<&Table::bytes>,
                               "Bytes of memory, without those that only snapshots hold.")
        .def("__repr__", &repr);
    bind_options(table);
    bind_table_rows(table);
    bind_table_snapshot(m);
    bind_table_blocks(m);
    m.def("bucket_of", &buckets, py::arg("ids"), docs::bucket_of);
}

}  // namespace windeck
