#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/buffers.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "windeck/checkpoint/file_values.hpp"

namespace windeck {
namespace {

constexpr const char* doc =
    R"(Read values from a table file of RocksDB, with the CRC32C of their bodies.

Parameters
----------
file : int
    A file descriptor. Its position is not used.
values : sequence of (int, buffer, buffer, buffer)
    For each value the offset of its block in the file, the expected first bytes of the block, and
    writable memory for the head and the body of the value, which begins 7 bytes after them.
end : buffer
    The expected bytes after each value. The masked CRC32C of the block so far follows them.
streamed : bool
    Write bodies past the processor's caches: for memory that is not read soon.
threads : int
    The number of values that are read at a time.

Returns
-------
list of int or None
    The CRC32C of each body; None if the block cannot be read, is not as expected, or is damaged. The
    memory is undefined then.

Raises
------
TypeError, ValueError, BufferError
    A wrong type, a negative number, memory that is strided or read-only.

Notes
-----
Releases the GIL.

Examples
--------
>>> import tempfile
>>> from windeck._core import crc32c, read_values
>>> block = b"<" + bytes(7) + b"headbody" + b">"
>>> crc = crc32c(block)
>>> stored = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
>>> head, body = bytearray(4), bytearray(4)
>>> with tempfile.TemporaryFile() as file:
...     _ = file.write(block + stored.to_bytes(4, "little")), file.flush()
...     values = [(0, b"<", head, body)]
...     sums = read_values(file.fileno(), values, end=b">", streamed=False)
>>> head, body, sums == [crc32c(b"body")]
(bytearray(b'head'), bytearray(b'body'), True)
)";

std::vector<std::optional<std::uint32_t>> read(const IntegerLike& file, const py::sequence& wanted,
                                               py::handle end, bool streamed,
                                               const py::object& threads) {
    const auto handle = static_cast<int>(integer(file.value, "file", 0, 1 << 30));
    const int workers = thread_count(threads);
    const Buffer last(end);
    std::vector<Buffer> held;
    std::vector<FileValue> values;
    held.reserve(3 * wanted.size());
    for (const py::handle one : wanted) {
        const auto pieces = py::cast<py::tuple>(one);
        if (pieces.size() != 4) throw py::value_error("expected an offset and three buffers");
        FileValue value;
        value.offset = static_cast<std::uint64_t>(integer(pieces[0], "offset", 0));
        value.begin = held.emplace_back(pieces[1]).bytes();
        value.head = held.emplace_back(pieces[2], true).writable_bytes();
        value.body = held.emplace_back(pieces[3], true).writable_bytes();
        values.push_back(value);
    }
    {
        const GilRelease unlocked;
        read_values(handle, values, last.bytes(), streamed, workers);
    }
    std::vector<std::optional<std::uint32_t>> sums;
    for (const FileValue& value : values)
        sums.push_back(value.sum);
    return sums;
}

}  // namespace

void bind_file_values(py::module_& m) {
    m.def("read_values", &read, py::arg("file"), py::arg("values"), py::kw_only(), py::arg("end"),
          py::arg("streamed"), py::arg("threads") = 1, doc);
}

}  // namespace windeck
