#include <pybind11/typing.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "held.hpp"
#include "windeck/reading.hpp"

namespace windeck {
namespace {

using Found = py::typing::List<py::typing::Tuple<py::bytes, int, int, py::bytes>>;

constexpr const char* doc =
    R"(Read stretches of a file: of each a front, a body to its place, a back.

Parameters
----------
file : int
    The descriptor of a file that is open for reading. Where it stands in the file stays.
stretches : sequence of (int, int, writable buffer, int)
    Of each where it begins in the file; the bytes before the body, at most 2**20; the body's
    memory, contiguous, all of which is filled; and the bytes after it, at most 2**20.
cached : bool
    Whether the bodies are read at once, and so are to be in the processor's caches. False for what
    is wanted later: that is quicker, and leaves in the caches what is there.

Returns
-------
list of (bytes, int, int, bytes)
    Of each the bytes before the body, the CRC32C of these and the body, that of the body alone, and
    the bytes after it.

Raises
------
TypeError
    For what is no integer, no buffer, or not four of them.
ValueError
    For numbers outside of these ranges, for a buffer that is read-only or strided, and where the
    file ends before a stretch does.
OSError
    For what the system refuses.

Notes
-----
O(bytes); other Python threads run meanwhile, and the lock is asked for once for all. After an
error the bodies may hold anything.

Examples
--------
>>> import tempfile
>>> from windeck._core import crc32c, read_summed
>>> body = bytearray(4)
>>> with tempfile.TemporaryFile() as file:
...     _ = file.write(b"frontbodyback")
...     file.flush()
...     [(front, both, crc, back)] = read_summed(file.fileno(), [(0, 5, body, 4)])
>>> front, bytes(body), back
(b'front', b'body', b'back')
>>> both == crc32c(b"frontbody"), crc == crc32c(b"body")
(True, True)
)";

constexpr std::int64_t most_around = 1 << 20;

/// Bytes that are to be filled.
struct Fresh {
    explicit Fresh(std::int64_t size)
        : made(py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, size))) {
        if (!made) throw py::error_already_set();
        memory = {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(made.ptr())),
                  static_cast<std::size_t>(size)};
    }

    py::bytes made;
    std::span<std::byte> memory;
};

/// What Python asked for, and holds the memory of.
struct Asked {
    explicit Asked(const py::tuple& given)
        : front(integer(given[1], "front", 0, most_around)),
          body(given[2]),
          back(integer(given[3], "back", 0, most_around)),
          stretch{0, front.memory, body.bytes(), back.memory} {
        const auto bytes = static_cast<std::int64_t>(stretch.end());
        const std::int64_t furthest = std::numeric_limits<std::int64_t>::max() - bytes;
        stretch.offset = static_cast<std::uint64_t>(integer(given[0], "offset", 0, furthest));
    }

    Fresh front;
    HeldWritable body;
    Fresh back;
    Stretch stretch;
};

py::tuple four(py::handle given) {
    if (!py::isinstance<py::tuple>(given) || py::len(given) != 4) {
        throw py::type_error("a stretch is of type " + type_name(given) +
                             ", expected a tuple of offset, front, body and back");
    }
    return py::reinterpret_borrow<py::tuple>(given);
}

Found read(const py::object& file, const py::sequence& stretches, bool cached) {
    const auto handle = static_cast<int>(integer(file, "file", 0, std::numeric_limits<int>::max()));
    std::deque<Asked> asked;  // they do not move
    for (const py::handle given : stretches)
        asked.emplace_back(four(given));
    std::vector<Stretch> plain;
    for (const Asked& one : asked)
        plain.push_back(one.stretch);
    try {
        const py::gil_scoped_release unlocked;
        read_summed(handle, plain, cached);
    } catch (const EndOfFile& end) {
        throw py::value_error(std::string(end.what()) +
                              ", expected a stretch to end there or before");
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
        throw py::error_already_set();
    }
    Found found;
    for (std::size_t i = 0; i < plain.size(); ++i)
        found.append(
            py::make_tuple(asked[i].front.made, plain[i].both, plain[i].sum, asked[i].back.made));
    return found;
}

}  // namespace

void bind_reading(py::module_& m) {
    m.def("read_summed", &read, py::arg("file"), py::arg("stretches"), py::kw_only(),
          py::arg("cached") = true, doc);
}

}  // namespace windeck
