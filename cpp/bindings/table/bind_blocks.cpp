#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/batch.hpp"
#include "base/buffers.hpp"
#include "base/gil.hpp"
#include "base/numbers.hpp"
#include "table/docstrings.hpp"
#include "table/objects.hpp"
#include "windeck/table/blocks.hpp"

namespace windeck {
namespace {

using BlockList =
    py::typing::List<py::typing::Tuple<py::memoryview, int, int, int, int, int, int, int>>;

constexpr std::int64_t most_u32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t most_slots = 1 << 20;

/// Rules, and the borders that they refer to.
struct Rules {
    std::vector<int> borders;
    BlockRules rules;
};

Rules rules_of(const IntegerLike& dim, const IntegerLike& slots, const IntegerLike& most,
               const py::sequence& borders, DType dtype) {
    Rules out;
    out.rules.dtype = dtype;
    out.rules.dim = static_cast<std::uint32_t>(integer(dim.value, "dim", 1, most_u32));
    out.rules.slots = static_cast<std::uint32_t>(integer(slots.value, "slots", 0, most_slots));
    out.rules.most = static_cast<std::size_t>(integer(most.value, "most", 0));
    for (const py::handle border : borders) {
        out.borders.push_back(static_cast<int>(integer(border, "a border", 0, bucket_count - 1)));
    }
    return out;
}

/// Returns blocks that `write` writes to memory of the pool.
template <typename Write>
BlockList write_pooled(std::vector<EntryBlock>& blocks, const Write& write) {
    BlockList made;
    if (blocks.empty()) return made;
    const std::size_t bytes = bytes_of(blocks);
    const PooledMemory memory = pooled_memory(bytes);
    {
        const GilRelease unlocked;
        write(memory.data);
    }
    const py::array_t<std::uint8_t> whole(static_cast<py::ssize_t>(bytes),
                                          reinterpret_cast<const std::uint8_t*>(memory.data),
                                          memory.owner);
    whole.attr("setflags")(py::arg("write") = false);
    const auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(whole.ptr()));
    if (!view) throw py::error_already_set();
    for (const EntryBlock& block : blocks) {
        auto payload = py::reinterpret_steal<py::object>(
            PySequence_GetSlice(view.ptr(), static_cast<py::ssize_t>(block.at),
                                static_cast<py::ssize_t>(block.at + block.bytes)));
        if (!payload) throw py::error_already_set();
        made.append(py::make_tuple(payload, block.sum, block.entries, block.rows, block.dead,
                                   block.first_id, block.first_bucket, block.last_bucket));
    }
    return made;
}

BlockList snapshot_blocks(const PySnapshot& self, const IntegerLike& first_bucket,
                          const IntegerLike& end_bucket, const IntegerLike& since,
                          const IntegerLike& dim, const IntegerLike& slots, const IntegerLike& most,
                          const py::sequence& borders, const py::object& threads) {
    const int workers = thread_count(threads);
    const auto first =
        static_cast<int>(integer(first_bucket.value, "first_bucket", 0, bucket_count));
    const auto end = static_cast<int>(integer(end_bucket.value, "end_bucket", first, bucket_count));
    const std::int64_t clock = integer(since.value, "since");
    const auto snapshot = self.get();
    Rules given = rules_of(dim, slots, most, borders, snapshot->dtype());
    given.rules.borders = given.borders;
    if (given.rules.width() != static_cast<std::size_t>(snapshot->width())) {
        throw py::value_error("dim and slots make rows of " + std::to_string(given.rules.width()) +
                              " floats, expected " + std::to_string(snapshot->width()) +
                              " as the snapshot has");
    }
    TableSnapshot::Selection selection;
    std::vector<EntryBlock> blocks;
    {
        const GilRelease unlocked;
        selection = snapshot->select(first, end, clock);
        blocks = cut_blocks(selection, given.rules);
    }
    return write_pooled(blocks, [&](std::byte* memory) {
        write_blocks(blocks, given.rules, *snapshot, selection, memory, workers);
    });
}

/// A copy: the number of values read depends on it, and the caller could change the array
/// meanwhile.
std::vector<std::uint8_t> states_of(py::handle value, std::size_t size) {
    const Bytes given = byte_array(value, "states");
    std::vector<std::uint8_t> out(given.values.begin(), given.values.end());
    if (out.size() != size) {
        throw py::value_error("states has " + std::to_string(out.size()) + " entries, expected " +
                              std::to_string(size) + ", as many as keys");
    }
    const auto wrong = std::ranges::find_if(out, [](auto state) { return state > state_dead; });
    if (wrong != out.end())
        throw py::value_error("states has " + std::to_string(*wrong) + ", expected 0, 1 or 2");
    return out;
}

/// The dtype of rows by that of their array: uint16 holds the bits of bfloat16.
DType rows_dtype_of(py::handle values) {
    const bool bits = py::isinstance<py::array>(values) &&
                      is_native(py::reinterpret_borrow<py::array>(values).dtype(), DType::uint16);
    return bits ? DType::bfloat16 : DType::float32;
}

BlockList blocks_of_columns(py::handle keys, py::handle versions, py::handle frequencies,
                            py::handle seen, py::handle states, py::handle values,
                            const IntegerLike& dim, const IntegerLike& slots,
                            const IntegerLike& most, const py::sequence& borders) {
    const auto dtype = rows_dtype_of(values);
    Rules given = rules_of(dim, slots, most, borders, dtype);
    given.rules.borders = given.borders;
    const Indices ids = index_array(keys, "keys");
    const std::size_t size = ids.values.size();
    if (size > static_cast<std::size_t>(most_u32)) {
        throw py::value_error("keys has " + std::to_string(size) + " entries, expected at most " +
                              std::to_string(most_u32));
    }
    const Indices updated = as_many(versions, "versions", size);
    const Indices counts = as_many(frequencies, "frequencies", size);
    const Indices looked = as_many(seen, "seen", size);
    const auto kinds = states_of(states, size);
    const auto rows = static_cast<std::size_t>(std::ranges::count(kinds, state_row));
    const auto width = static_cast<std::int64_t>(given.rules.width());
    const py::array row_values =
        in_array(values, numpy_dtype(dtype), rows_shape(rows, width), "values");
    const EntryColumns entries{
        ids.values.data(),    updated.values.data(),
        counts.values.data(), looked.values.data(),
        kinds.data(),         static_cast<const std::byte*>(row_values.data())};
    std::vector<EntryBlock> blocks;
    {
        const GilRelease unlocked;
        blocks = cut_blocks(ids.values, kinds, given.rules);
    }
    return write_pooled(
        blocks, [&](std::byte* memory) { write_blocks(blocks, given.rules, entries, memory); });
}

std::optional<std::size_t> insert_blocks_into(Table& table, const py::sequence& payloads,
                                              py::handle lines, const IntegerLike& first_bucket,
                                              const IntegerLike& end_bucket,
                                              const std::optional<std::int64_t>& after,
                                              const py::object& threads) {
    const int workers = thread_count(threads);
    const auto first =
        static_cast<int>(integer(first_bucket.value, "first_bucket", 0, bucket_count));
    const auto end = static_cast<int>(integer(end_bucket.value, "end_bucket", first, bucket_count));
    const Buffer index(lines);
    std::vector<Buffer> held;
    std::vector<StoredBlock> blocks;
    for (const py::handle payload : payloads) {
        const std::span<const std::byte> bytes = held.emplace_back(payload).bytes();
        if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::int64_t) != 0)
            throw py::value_error("a payload is not aligned to 8 bytes");
        const std::size_t at = blocks.size() * sizeof(IndexLine);
        if (index.bytes().size() < at + sizeof(IndexLine))
            throw py::value_error("there are more payloads than lines, expected as many");
        const IndexLine line = IndexLine::at(index.bytes().data() + at);
        StoredBlock& block = blocks.emplace_back();
        block.memory = bytes.data();
        block.known.bytes = bytes.size();
        static_cast<BlockSize&>(block.known) = line.size;
        block.known.first_id = line.first_id;
        block.known.first_bucket = line.first_bucket;
        block.known.last_bucket = line.last_bucket;
    }
    BlockRules rules;
    rules.dim = static_cast<std::uint32_t>(table.options().dim);
    rules.slots = static_cast<std::uint32_t>(table.options().slots);
    rules.dtype = table.options().dtype;
    const GilRelease unlocked;
    return insert_blocks(table, blocks, rules, after, first, end, workers);
}

}  // namespace

void bind_table_blocks(py::module_& m) {
    m.def("pack_blocks", &blocks_of_columns, py::arg("keys"), py::arg("versions"),
          py::arg("frequencies"), py::arg("seen"), py::arg("states"), py::arg("values"),
          py::kw_only(), py::arg("dim"), py::arg("slots"), py::arg("most"), py::arg("borders"),
          docs::pack_blocks);
    py::cast<py::class_<PySnapshot>>(m.attr("EmbeddingSnapshot"))
        .def("blocks", &snapshot_blocks, py::arg("first_bucket"), py::arg("end_bucket"),
             py::arg("since") = -1, py::kw_only(), py::arg("dim"), py::arg("slots"),
             py::arg("most"), py::arg("borders"), py::arg("threads") = 1, docs::blocks);
    py::cast<py::class_<Table>>(m.attr("EmbeddingCore"))
        .def("insert_blocks", &insert_blocks_into, py::arg("payloads"), py::arg("lines"),
             py::arg("first_bucket"), py::arg("end_bucket"), py::kw_only(),
             py::arg("after") = py::none(), py::arg("threads") = 1, docs::insert_blocks);
}

}  // namespace windeck
